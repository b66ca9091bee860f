"""One life of the server: from its start to its last byte.

In: a command line and an environment. Out: an exit code, the bytes it printed, the moment it became ready.
Never decides what follows; the supervisor does.

stdout and stderr share one pipe: a diagnosis needs the order of the lines more than the name of the stream.
The server gets a session of its own, so that a Ctrl-C in the terminal reaches the launcher alone and every
process of the server can be found again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.launch import health
from agent.launch.children import PipeReader, Reaper, spawn
from agent.launch.clock import Clock
from agent.launch.command import Address
from agent.launch.guard import Guard
from agent.launch.procfs import cgroup_memory, listens, subtree
from agent.launch.scan import ShutdownScanner

PIPE_BYTES = 1 << 20
POLL_SECONDS = 0.5
HEALTH_SECONDS = 1.0
DRAIN_SECONDS = 0.1
HEADLESS_READY_SECONDS = 60.0
CANNOT_RUN = 127


@dataclass(frozen=True)
class Moment:
    """One instant on both clocks."""

    wall: float
    monotonic: float


def now(clock: Clock) -> Moment:
    """This instant."""
    return Moment(clock.wall(), clock.monotonic())


class Life:
    """A running server process. ``ended`` completes with the exit code (negative = signal)."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        address: Address,
        *,
        reaper: Reaper,
        guard: Guard,
        clock: Clock,
        sink: Callable[[bytes], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.argv = list(argv)
        self.env = dict(env)
        self.address = address
        self._clock = clock
        self._sink = sink
        self._scanner = ShutdownScanner()
        self.ready: Moment | None = None
        self.ended_at: Moment | None = None
        self.oom_kill_before = cgroup_memory().oom_kill
        reader, writer = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.started = now(clock)
        self._process = self._spawn(writer, guard)
        os.close(writer)
        self.pid = self._process.pid if self._process else 0
        self._pipe = PipeReader(loop, reader, self._take)
        self.ended: asyncio.Future[int] = (
            reaper.expect(self.pid, self._process) if self._process else _done(loop, CANNOT_RUN)
        )
        if self._process is None:
            self.ended_at = self.started
        else:
            self.ended.add_done_callback(self._stamp)

    def _spawn(self, writer: int, guard: Guard) -> subprocess.Popen[bytes] | None:
        try:
            process = spawn(
                self.argv, self.env, stdout=writer, stderr=writer,
                # The child itself names its session to the guard, so no moment is left uncovered.
                in_child=lambda: guard.announce("kill"),
            )  # fmt: skip
        except OSError as error:
            self._sink(f"agent launch: {self.argv[0]} cannot be run: {error.strerror or error}\n".encode())
            return None
        guard.tell("kill", process.pid)
        return process

    def _take(self, data: bytes) -> None:
        self._scanner.feed(data, self._clock.monotonic())
        self._sink(data)

    def _stamp(self, _: asyncio.Future[int]) -> None:
        self.ended_at = now(self._clock)

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    @property
    def told_to_stop(self) -> bool:
        """Whether vLLM says that somebody asked it to shut down."""
        return self._scanner.told_to_stop

    def send(self, number: int) -> None:
        """A signal to the server's first process alone: vLLM hands its own stop on, in the right order."""
        if self.alive and self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL to the whole process group."""
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def drain_pipe(self) -> None:
        """Read what the server left in the pipe, for at most 100 ms."""
        self._pipe.drain(asyncio.get_running_loop().time() + DRAIN_SECONDS)

    def close(self) -> None:
        """Stop reading; call it when the subtree is gone."""
        self.drain_pipe()
        self._pipe.close()

    async def wait_ready(self) -> bool:
        """True once /health answered 200 from a socket of this server; False if it ended first."""
        while self.alive:
            if await self._answers():
                self.ready = now(self._clock)
                return True
            await asyncio.wait({self.ended}, timeout=POLL_SECONDS)
        return False

    async def _answers(self) -> bool:
        if self.address.headless:
            return self._clock.monotonic() - self.started.monotonic >= HEADLESS_READY_SECONDS
        reply = await health.get(self.address, health.HEALTH_PATH, HEALTH_SECONDS)
        if reply is None or reply.status != 200 or not self.alive:
            return False
        return self.address.uds is not None or self._own_listener() is not False

    def _own_listener(self) -> bool | None:
        """Another server may sit on the port while ours still loads (port in use): its answer does not
        count.
        """
        pids = [process.pid for process in subtree(self.pid, {self.pid}, "")]
        return listens(self.address.port, pids)


def _done(loop: asyncio.AbstractEventLoop, code: int) -> asyncio.Future[int]:
    future: asyncio.Future[int] = loop.create_future()
    future.set_result(code)
    return future
