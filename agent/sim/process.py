"""The two processes of the stand-in and the pipe between them.

The API server forks one EngineCore, as vLLM starts one: a real child that can be killed, stopped and seen in
the process table under its title. Between them runs a socket pair with one JSON document a line. The end of
the socket is the news that the other side is gone; no timers, no polling.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PR_SET_NAME = 15


def set_title(title: str) -> None:
    """Name this process as setproctitle would: 15 characters in comm, the whole title in cmdline.

    The kernel shows the memory of the original argv as cmdline, so the title is written there, cut to its
    length. Where /proc is missing or the memory is too small nothing happens: a title is no reason to fail.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, title[:15].encode(), 0, 0, 0)
    try:
        numbers = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return
    start, end = int(numbers[45]), int(numbers[46])
    room = end - start
    if start and room > len(title):
        ctypes.memmove(start, title.encode().ljust(room, b"\0"), room)


class Channel:
    """One end of the pipe: whole JSON lines out, complete documents in."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""

    def send(self, message: Mapping[str, object]) -> None:
        """Blocking; raises BrokenPipeError or ConnectionResetError when the other side is gone."""
        self.sock.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """The documents that ``data`` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def receive(self) -> list[dict[str, object]] | None:
        """What is there now, waiting for something; None at the end."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            return None
        return list(self.feed(data)) if data else None


def fork_engine(run: Callable[[Channel], int]) -> tuple[int, Channel]:
    """Start the engine in a child; returns its process id and the parent's end of the pipe.

    Call it before any thread or event loop exists. The child never returns from here.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, Channel(ours)
    ours.close()
    code = 1
    try:
        code = run(Channel(theirs))
    finally:
        os._exit(code)
