"""Starting and reaping processes: one waitpid for everybody.

In: argument lists. Out: exit codes as futures. The launcher is a subreaper (or PID 1), so processes that it
never started become its children; one place therefore waits for *any* child, and asyncio's own watchers
(which wait for single pids, in threads) are not used.

SIGCHLD wakes the loop through a file descriptor, so an exit is seen in well under a millisecond without
polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

PR_SET_CHILD_SUBREAPER = 36
TOOL_OUTPUT_BYTES = 1 << 20


def become_subreaper() -> str | None:
    """Adopt orphans of the subtree (prctl(2)). Returns why it did not work, or None."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
            return None
        return os.strerror(ctypes.get_errno())
    except (OSError, AttributeError) as error:
        return str(error)


class Reaper:
    """Collects every child that ended and completes the future of those that somebody waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, tuple[subprocess.Popen[bytes] | None, asyncio.Future[int]]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self.collect)

    def expect(self, pid: int, process: subprocess.Popen[bytes] | None = None) -> asyncio.Future[int]:
        """Future of the exit code (negative = signal). Call right after the start, before the loop
        runs again.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting[pid] = (process, future)
        return future

    def collect(self) -> None:
        """Reap whatever ended, adopted orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except (ChildProcessError, InterruptedError):
                return
            if pid == 0:
                return
            process, future = self._waiting.pop(pid, (None, None))
            code = os.waitstatus_to_exitcode(status)
            if process is not None:
                process.returncode = code
            if future is not None and not future.done():
                future.set_result(code)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    stdout: int | None,
    stderr: int | None,
    stdin: int | None = subprocess.DEVNULL,
    in_child: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, signals at their defaults. Raises OSError if it cannot be run.

    ``in_child`` runs between fork and exec; the launcher has one thread, so that is safe.
    """

    def before_exec() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if in_child is not None:
            in_child()

    return subprocess.Popen(
        list(argv), env=dict(env), stdin=stdin, stdout=stdout, stderr=stderr,
        start_new_session=True, preexec_fn=before_exec,
    )  # fmt: skip


@dataclass(frozen=True)
class ToolResult:
    """What a short tool said. ``code`` is None when it did not run or ran past its limit; ``error``
    says why.
    """

    code: int | None
    stdout: str = ""
    stderr: str = ""
    error: str | None = None


class Tools:
    """Runs short programs (nvidia-smi, ptxas, python -c) with a limit; a hung one is killed and left
    behind.
    """

    def __init__(self, reaper: Reaper, sessions: set[int]) -> None:
        self._reaper = reaper
        self._sessions = sessions

    async def run(self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None) -> ToolResult:
        """Never raises for what the program does; a driver that hangs in the kernel is not waited for."""
        try:
            process = spawn(argv, os.environ if env is None else env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except OSError as error:
            return ToolResult(None, error=f"{argv[0]}: {error.strerror or error}")
        self._sessions.add(process.pid)
        ended = self._reaper.expect(process.pid, process)
        try:
            return await asyncio.wait_for(self._collect(process, ended), timeout)
        except asyncio.TimeoutError:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            return ToolResult(None, error=f"{argv[0]} did not answer within {timeout:g} s")
        finally:
            ended.add_done_callback(lambda _: self._sessions.discard(process.pid))

    async def _collect(self, process: subprocess.Popen[bytes], ended: asyncio.Future[int]) -> ToolResult:
        assert process.stdout is not None and process.stderr is not None
        loop = asyncio.get_running_loop()
        readers, transports = [], []
        try:
            for pipe in (process.stdout, process.stderr):
                reader = asyncio.StreamReader(limit=TOOL_OUTPUT_BYTES)
                protocol = functools.partial(asyncio.StreamReaderProtocol, reader)
                transport, _ = await loop.connect_read_pipe(protocol, pipe)
                readers.append(reader)
                transports.append(transport)
            out, err = await asyncio.gather(*(reader.read() for reader in readers))
            code = await asyncio.shield(ended)
        finally:
            for transport in transports:
                transport.close()
        return ToolResult(code, _text(out), _text(err))


def _text(data: bytes) -> str:
    return data[:TOOL_OUTPUT_BYTES].decode("utf-8", "replace")


class PipeReader:
    """Hands on what arrives in a pipe, as soon as it arrives, until its last writer is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, sink: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._fd: int | None = descriptor
        self._sink = sink
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._ready)

    def _ready(self) -> None:
        self._read_once()

    def _read_once(self) -> bool:
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, 1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self._sink(data)
        return True

    def drain(self, deadline: float) -> None:
        """Read what is there already; a grandchild that keeps writing cannot hold us past ``deadline``."""
        while self._read_once() and self._loop.time() < deadline:
            pass

    def close(self) -> None:
        """Stop reading."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
