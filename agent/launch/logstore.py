"""What the server printed: a bounded ring in memory and bounded, rotating files in ``log/``.

In: bytes as they came from the pipe. Out: pieces by offset. An offset counts the bytes since the oldest kept
file's own start, goes on across restarts of vLLM and of the launcher, and never goes back. Never blocks and
never raises on a full disk: the file is left out, the ring goes on, and a reader who needed those bytes is
told how many are missing.

Files are named by the offset of their first byte, so a gap needs no index. Where a start of the server begins is
marked, and no piece crosses a mark, so a reader never takes a line of one start for the last words of another.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.launch.bell import Bell
from agent.launch.clock import Clock

RING_BYTES = 8 << 20
FILE_BYTES = 8 << 20
FILE_COUNT = 8
DISK_RETRY_SECONDS = 5.0
MARKS_KEPT = 1000


@dataclass(frozen=True)
class Piece:
    """Bytes from ``offset`` on; ``dropped`` bytes right before them are lost. ``start`` is where the start of the
    server that wrote them begins; None when that was before this launcher.
    """

    offset: int
    data: bytes
    dropped: int
    start: int | None = None

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class LogStore:
    """Ring and files under one offset."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        report: Callable[[str], None],
        *,
        ring_bytes: int = RING_BYTES,
        file_bytes: int = FILE_BYTES,
        file_count: int = FILE_COUNT,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._report = report
        self._file_bytes = file_bytes
        self._file_count = file_count
        # An anonymous mapping takes memory page by page as it fills; a bytearray would take all of it now.
        self._ring = mmap.mmap(-1, ring_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._retry_at = 0.0
        self._files = self._existing()
        self.end = max((start + size for start, _, size in self._files), default=0)
        self._ring_start = self.end
        self._fd: int | None = None
        self._marks: list[int] = []
        self.changed = Bell()

    def _existing(self) -> list[tuple[int, Path, int]]:
        found: list[tuple[int, Path, int]] = []
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o750, exist_ok=True)
            if self._folder.lstat().st_uid not in (0, os.geteuid()):
                # Its owner could exchange the files, or has put a link to a folder of somebody else there.
                self._report(f"{self._folder} belongs to another user; the log is kept in memory only")
                self._retry_at = float("inf")
                return []
            for path in sorted(self._folder.glob("*.log")):
                info = path.lstat()
                if path.stem.isdigit() and stat.S_ISREG(info.st_mode):
                    found.append((int(path.stem), path, info.st_size))
        return found

    @property
    def start(self) -> int:
        """The oldest offset that can still be read."""
        return min([self._ring_start, *(start for start, _, _ in self._files)])

    def mark(self) -> int:
        """A start of the server begins here; the offset."""
        self._marks = [*self._marks[1 - MARKS_KEPT :], self.end]
        return self.end

    def append(self, data: bytes) -> None:
        """Take bytes in; readers wake at once."""
        if not data:
            return
        self._to_ring(data)
        self._to_file(data)
        self.end += len(data)
        self._ring_start = max(self._ring_start, self.end - len(self._ring))
        self.changed.ring()

    def _to_ring(self, data: bytes) -> None:
        size = len(self._ring)
        tail = data[-size:]
        position = (self.end + len(data) - len(tail)) % size
        first = min(len(tail), size - position)
        self._ring[position : position + first] = tail[:first]
        self._ring[: len(tail) - first] = tail[first:]

    def _to_file(self, data: bytes) -> None:
        if self._fd is None and not self._open_next(self.end):
            return
        assert self._fd is not None
        start, path, size = self._files[-1]
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self._give_up_file(f"{path} could not be written: {error.strerror or error}")
            return
        self._files[-1] = (start, path, size + written)
        if written < len(data):
            self._give_up_file(f"{path} could not be written in full: the disk is full")
        elif size + written >= self._file_bytes:
            self._close_file()

    def _open_next(self, offset: int) -> bool:
        if self._clock.monotonic() < self._retry_at:
            return False
        path = self._folder / f"{offset:020d}.log"
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            self._give_up_file(f"{path} could not be opened: {error.strerror or error}")
            return False
        self._files = [entry for entry in self._files if entry[1] != path]
        self._files.append((offset, path, 0))
        while len(self._files) > self._file_count:
            _, old, _ = self._files.pop(0)
            with contextlib.suppress(OSError):
                old.unlink()
        return True

    def _give_up_file(self, message: str) -> None:
        if self._retry_at == 0.0:
            self._report(message)
        self._retry_at = self._clock.monotonic() + DISK_RETRY_SECONDS
        self._close_file()

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, offset: int, limit: int) -> Piece:
        """At most ``limit`` bytes from ``offset`` on; empty at the end. Skips what is lost and says
        how much.
        """
        wanted = min(max(offset, 0), self.end)
        piece = self._read_file(wanted, limit) if wanted < self._ring_start else None
        return self._within_one_start(piece or self._read_ring(wanted, limit))

    def _within_one_start(self, piece: Piece) -> Piece:
        """Cut at the next mark, and say which start the bytes are of."""
        after = bisect_right(self._marks, piece.offset)
        start = self._marks[after - 1] if after else None
        data = piece.data[: self._marks[after] - piece.offset] if after < len(self._marks) else piece.data
        return Piece(piece.offset, data, piece.dropped, start)

    def _read_ring(self, wanted: int, limit: int) -> Piece:
        start = max(wanted, self._ring_start)
        count = min(limit, self.end - start)
        size = len(self._ring)
        position = start % size
        data = bytes(self._ring[position : position + count])
        data += bytes(self._ring[: count - len(data)])
        return Piece(start, data, start - wanted)

    def _read_file(self, wanted: int, limit: int) -> Piece | None:
        for start, path, size in self._files:
            if start + size <= wanted or start >= self._ring_start:
                continue
            begin = max(wanted, start)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(descriptor, "rb") as file:
                    file.seek(begin - start)
                    data = file.read(min(limit, start + size - begin))
            except OSError:
                continue
            if data:
                return Piece(begin, data, begin - wanted)
        return None

    def close(self) -> None:
        """Close the open file."""
        self._close_file()
