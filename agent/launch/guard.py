"""The guard: a tiny process that ends the server when the launcher is gone, even by ``kill -9``.

In: lines on a pipe (``kill SID``, ``term SID``, ``forget SID``). Out: when the pipe closes, SIGKILL to every
process of the sessions under ``kill`` and SIGTERM, then SIGKILL, to those under ``term``. It never acts while
the launcher lives, and never reads anything but that pipe and /proc.

Why not PR_SET_PDEATHSIG: it reaches the direct child alone, and EngineCore and the workers stay behind with
the GPU memory (seen). It keeps the run-dir's lock until the old server is gone, so that the next launcher
does not start into a full card.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from agent.launch.procfs import marked, processes

KILL_SECONDS = 5.0
TERM_SECONDS = 10.0


class Guard:
    """The launcher's end of the pipe; a guard that dies is replaced and told the standing orders again."""

    def __init__(self, lock_fd: int, launch_id: str) -> None:
        self._lock_fd = lock_fd
        self._launch_id = launch_id
        self._orders: dict[int, str] = {}
        self.pid, self.descriptor = fork_guard(lock_fd, launch_id)

    def tell(self, order: str, session: int) -> None:
        """Send one order."""
        self._orders[session] = order
        if order == "forget":
            del self._orders[session]
        self._send(order, session)

    def announce(self, order: str) -> None:
        """The same, called by the child between fork and exec for its own new session."""
        self._send(order, os.getpid())

    def _send(self, order: str, session: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self.descriptor, f"{order} {session}\n".encode())

    def replace(self) -> None:
        """Fork a new guard after the old one was killed."""
        os.close(self.descriptor)
        self.pid, self.descriptor = fork_guard(self._lock_fd, self._launch_id)
        for session, order in self._orders.items():
            self._send(order, session)


def fork_guard(lock_fd: int, launch_id: str) -> tuple[int, int]:
    """``(pid, descriptor to write to)`` of a new guard. The launcher has one thread, so forking
    without exec is safe.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _main(reader, lock_fd, launch_id)
        finally:
            os._exit(0)
    os.close(reader)
    return pid, writer


def _main(reader: int, lock_fd: int, launch_id: str) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _close_all_but(reader, lock_fd)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("agent-guard")
    orders = _read_orders(reader)
    kill = {session for session, order in orders.items() if order == "kill"}
    term = {session for session, order in orders.items() if order == "term"}
    _signal_sessions(term, signal.SIGTERM)
    _kill_until_gone(kill, launch_id if kill else "", KILL_SECONDS)
    _kill_after(term, TERM_SECONDS)


def _close_all_but(*keep: int) -> None:
    for name in list(Path("/proc/self/fd").iterdir()):
        if int(name.name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name.name))


def _read_orders(reader: int) -> dict[int, str]:
    """Orders that stand when the launcher's end closes."""
    orders: dict[int, str] = {}
    buffer = b""
    while data := os.read(reader, 4096):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            order, _, session = line.decode("ascii", "replace").partition(" ")
            if order == "forget":
                orders.pop(int(session), None)
            else:
                orders[int(session)] = order
    return orders


def _members(sessions: set[int], launch_id: str) -> list[int]:
    own = os.getpid()
    return [
        process.pid
        for process in processes()
        if process.pid != own and (process.session in sessions or (launch_id and marked(process.pid, launch_id)))
    ]


def _signal_sessions(sessions: set[int], number: int) -> None:
    for pid in _members(sessions, ""):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _kill_until_gone(sessions: set[int], launch_id: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while sessions and time.monotonic() < deadline:
        members = _members(sessions, launch_id)
        if not members:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _kill_after(sessions: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while sessions and _members(sessions, "") and time.monotonic() < deadline:
        time.sleep(0.1)
    _kill_until_gone(sessions, "", KILL_SECONDS)
