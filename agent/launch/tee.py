"""Own stdout, without ever waiting for it.

In: the bytes the server printed. Out: the same on own stdout, as fast as its reader takes them. Never
blocks: what does not fit in a bounded buffer is dropped, counted, and marked by one line when the reader
comes back.

The shared description of stdout is not made non-blocking (a shell that shares it would fail); it is opened
again through /proc where that works, a socket is written with MSG_DONTWAIT, and anything else only after
poll says that it takes a page.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
from collections.abc import Callable

BUFFER_BYTES = 1 << 20
PAGE = 4096


def nonblocking_writer(descriptor: int) -> tuple[Callable[[memoryview], int], int, bool]:
    """``(write, descriptor to watch, watchable)``; ``write`` returns the bytes taken or raises
    BlockingIOError.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return (lambda data: os.write(descriptor, data)), descriptor, False
    if stat.S_ISSOCK(mode):
        sock = socket.socket(fileno=os.dup(descriptor))
        return (lambda data: sock.send(data, socket.MSG_DONTWAIT)), descriptor, True
    try:
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return (lambda data: _polled_write(descriptor, data)), descriptor, stat.S_ISFIFO(mode)
    return (lambda data: os.write(again, data)), again, not _is_null(mode, descriptor)


def _is_null(mode: int, descriptor: int) -> bool:
    return stat.S_ISCHR(mode) and not os.isatty(descriptor)


def _polled_write(descriptor: int, data: memoryview) -> int:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(descriptor, data[:PAGE])


class Tee:
    """A bounded buffer in front of a descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._loop = loop
        self._limit = buffer_bytes
        self._pending = bytearray()
        self._waiting = False
        self._broken = False
        self._lost = 0
        self._last = ord("\n")
        self.dropped_bytes = 0
        self.written_bytes = 0
        try:
            self._write, self._fd, self._watchable = nonblocking_writer(descriptor)
        except OSError:
            self._broken = True

    @property
    def stalled(self) -> bool:
        """Whether bytes wait for a reader now."""
        return self._waiting

    def write(self, data: bytes) -> None:
        """Take ``data``; drop what the buffer cannot hold."""
        if self._broken or len(self._pending) + len(data) > self._limit:
            self._drop(len(data))
            return
        if self._lost:
            self._pending += self._marker()
        self._pending += data
        if not self._waiting:
            self._flush()

    def _drop(self, count: int) -> None:
        self._lost += count
        self.dropped_bytes += count

    def _marker(self) -> bytes:
        last = self._pending[-1] if self._pending else self._last
        lead = "" if last == ord("\n") else "\n"
        text = f"{lead}[agent launch: {self._lost} bytes dropped here, nobody read stdout]\n"
        self._lost = 0
        return text.encode()

    def _flush(self) -> None:
        try:
            while self._pending or self._lost:
                if not self._pending:
                    self._pending += self._marker()
                count = self._write(memoryview(bytes(self._pending[: 1 << 18])))
                self._last = self._pending[count - 1]
                del self._pending[:count]
                self.written_bytes += count
        except BlockingIOError:
            self._wait()
            return
        except OSError:
            self._drop(len(self._pending))
            self._pending.clear()
            self._broken = not self._retryable()
        self._stop_waiting()

    def _retryable(self) -> bool:
        """A regular file on a full disk may take bytes again; a pipe without a reader never will."""
        return not self._watchable

    def _wait(self) -> None:
        if self._waiting:
            return
        self._waiting = True
        if self._watchable:
            self._loop.add_writer(self._fd, self._flush)
        else:
            self._loop.call_later(0.2, self._again)

    def _again(self) -> None:
        self._waiting = False
        self._flush()

    def _stop_waiting(self) -> None:
        if self._waiting and self._watchable:
            self._loop.remove_writer(self._fd)
        self._waiting = False

    def close(self) -> None:
        """One last try without waiting."""
        if not self._broken:
            self._flush()
            self._stop_waiting()
