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
    """One followed file.

    ``history``: how many bytes before its present end are read first; ``caught_up`` turns true with the first chunk
    behind them. ``whole_lines``: half a line is held until its end comes or the file rests, so that several files
    can be read as one log.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        history: int = 8 * 2**20,
        poll_seconds: float = 0.1,
        whole_lines: bool = False,
    ) -> None:
        self._path = path
        self._clock = clock
        self._history = history
        self._poll = poll_seconds
        self._whole_lines = whole_lines
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._live_from: int | None = None
        self._half = b""
        self.unread: NotMeasured | None = None
        self.caught_up = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield bytes for ever; the caller cancels. Called again it goes on where it was."""
        while True:
            data = self._read()
            ready = self._lines(data)
            if ready:
                yield ready
            if not data:
                self.caught_up = True  # a missing file has no history
                await self._clock.sleep(self._poll)

    def _lines(self, data: bytes) -> bytes:
        """What may be handed on: all, or whole lines, and the held half once nothing more comes."""
        if not self._whole_lines:
            return data
        data = self._half + data if data else self._half + b""
        cut = data.rfind(b"\n") + 1
        rests = data == self._half
        if rests or len(data) - cut > CHUNK:
            self._half = b""
            return data
        self._half = data[cut:]
        return data[:cut]

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                self._find_position((status.st_dev, status.st_ino), status.st_size)
                file.seek(self._position)
                data = file.read(self._limit())
        except OSError as error:
            self.unread = NotMeasured(check="log", reason=f"{self._path}: {error.strerror or error}")
            self._identity, self._position = (-1, -1), 0
            return b""
        self.unread = None
        self.caught_up = self._live_from is None or self._position >= self._live_from
        self._position += len(data)
        return data

    def _find_position(self, identity: tuple[int, int], size: int) -> None:
        if self._identity is None:
            self._position, self._live_from = max(0, size - self._history), size
        elif identity != self._identity or size < self._position:
            self._position, self._live_from = 0, None
        self._identity = identity

    def _limit(self) -> int:
        """A chunk is history or news, never both."""
        if self._live_from is None or self._position >= self._live_from:
            return CHUNK
        return min(CHUNK, self._live_from - self._position)
