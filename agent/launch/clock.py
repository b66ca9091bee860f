"""The launcher's two clocks as one argument: wall time for records, monotonic seconds for every duration.

Both are CLOCK_MONOTONIC and CLOCK_REALTIME of the host, so a watcher in another container of the same host
compares the monotonic values with its own.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone


class Clock:
    """The machine's clocks; tests hand in a subclass."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()


def rfc3339(epoch_seconds: float) -> str:
    """``2026-01-02T03:04:05.678Z``."""
    moment = datetime.fromtimestamp(epoch_seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
