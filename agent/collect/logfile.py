"""Follow log files that somebody else writes (attach mode): rotation, truncation, late creation.

In: a path. Out: chunks of bytes as they appear. A file that is missing or unreadable is a reading with a reason,
not an error; a truncated or replaced file is read again from its start. Polled, since inotify does not cross the
mounts that containers use.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from agent.model import Clock, NotMeasured

CHUNK = 256 * 1024


class LogFile:
    """One followed file; ``history`` is how many bytes before its present end are read first."""

    def __init__(self, path: Path, clock: Clock, *, history: int = 8 * 2**20, poll_seconds: float = 0.1) -> None:
        self._path = path
        self._clock = clock
        self._history = history
        self._poll = poll_seconds
        self.unread: NotMeasured | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield bytes for ever; the caller cancels."""
        identity: tuple[int, int] | None = None
        position = 0
        while True:
            data, identity, position = self._read(identity, position)
            if data:
                yield data
            else:
                await self._clock.sleep(self._poll)

    def _read(self, identity: tuple[int, int] | None, position: int) -> tuple[bytes, tuple[int, int] | None, int]:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                now = (status.st_dev, status.st_ino)
                if identity is None:
                    position = max(0, status.st_size - self._history)
                elif now != identity or status.st_size < position:
                    position = 0
                file.seek(position)
                data = file.read(CHUNK)
        except OSError as error:
            self.unread = NotMeasured(check="log", reason=f"{self._path}: {error.strerror or error}")
            return b"", None if identity is None else (-1, -1), 0
        self.unread = None
        return data, now, position + len(data)
