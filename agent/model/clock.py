"""Time as an argument, so that tests run without sleeping."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """Wall time for people and records, monotonic seconds for every duration and deadline."""

    def now(self) -> datetime:
        """Aware UTC time."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of monotonic time."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # here: `agent diagnose` needs the types of this package and no event loop (40 ms)

        await asyncio.sleep(seconds)


def rfc3339(moment: datetime) -> str:
    """``2026-01-02T03:04:05.678Z``: milliseconds, UTC."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    """Inverse of :func:`rfc3339`; also takes offsets and microseconds. Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
