"""Between two lives: the old server's processes gone, its GPU memory back.

In: the sessions of the servers that were started. Out: signals to what is left of them, and a pause until
the cards are as empty as before. Never touches a process outside the server's own subtree, and never waits
without a limit.

The driver returns memory some time after the last process has gone; a start into that window fails with
"Free memory on device … is less than desired". A neighbour that took the memory meanwhile is no reason
to wait for ever: some equal readings in a row end the wait, with a notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from agent.launch.clock import Clock
from agent.launch.command import SHELLS
from agent.launch.guard import Guard
from agent.launch.procfs import Process, cgroup_memory, subtree
from agent.launch.settings import Settings
from agent.launch.surroundings import Surroundings

POLL_SECONDS = 0.05
TERM_AFTER_SECONDS = 1.0
KILL_AFTER_SECONDS = 3.0
GONE_LIMIT_SECONDS = 60.0
GPU_POLL_SECONDS = 0.5
TOLERANCE_BYTES = 512 << 20
SAME_BYTES = 64 << 20
STEADY_READINGS = 4


class Cleanup:
    """Remembers the sessions that may still have members."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        guard: Guard,
        surroundings: Surroundings,
        report: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._guard = guard
        self._surroundings = surroundings
        self._report = report
        self._sessions: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._hurried = False
        self._baseline: int | None = None

    def watch(self, session: int) -> None:
        """A server was started; ``session`` is the id of the process session that it leads (setsid)."""
        if session:
            self._sessions.add(session)

    def members(self) -> list[Process]:
        """All processes of the servers started so far that still live."""
        return subtree(os.getpid(), self._sessions, self._settings.launch_id)

    def leftovers(self, current: int | None) -> list[Process]:
        """Those that do not belong to the server that runs now (its session is ``current``)."""
        everyone = self.members()
        own = {process.pid for process in everyone if process.session == current}
        grown = True
        while grown:
            more = {process.pid for process in everyone if process.ppid in own} - own
            own |= more
            grown = bool(more)
        return [process for process in everyone if process.pid not in own]

    def oom_kills(self) -> int | None:
        """The kernel's count of OOM kills in our memory cgroup."""
        return cgroup_memory().oom_kill

    def begin(self, *, asked: bool, patience: float) -> None:
        """End what is left of the server, in the background. A shell may die before the server it
        started does.
        """
        self._hurried = False
        behind_shell = asked and Path(self._settings.argv[0]).name in SHELLS
        kill_after = patience if behind_shell else KILL_AFTER_SECONDS
        term_after = 0.0 if behind_shell else TERM_AFTER_SECONDS
        self._task = asyncio.ensure_future(self._end_leftovers(term_after, kill_after))

    def hurry(self) -> None:
        """SIGKILL at once."""
        self._hurried = True

    async def finish(self) -> None:
        """Wait until nothing is left."""
        if self._task is not None:
            await self._task
            self._task = None

    async def _end_leftovers(self, term_after: float, kill_after: float) -> None:
        begun = self._clock.monotonic()
        told = False
        while True:
            left = self.members()
            passed = self._clock.monotonic() - begun
            if not left:
                break
            if self._hurried or passed >= kill_after:
                _signal(left, signal.SIGKILL)
            elif passed >= term_after and not told:
                told = True
                _signal(left, signal.SIGTERM)
            if passed > kill_after + GONE_LIMIT_SECONDS:
                self._report(f"{len(left)} processes of the old server cannot be ended: {[p.pid for p in left]}")
                return
            await asyncio.sleep(POLL_SECONDS)
        for session in self._sessions:
            self._guard.tell("forget", session)
        self._sessions.clear()

    async def measure_baseline(self) -> None:
        """Memory in use before the server took any; its first seconds go to imports."""
        self._baseline = await self._surroundings.used_bytes()

    async def wait_for_gpu_memory(self, limit: float) -> str | None:
        """Until usage is back near the baseline or no longer falls; a notice where it stayed high."""
        if self._baseline is None:
            return None
        deadline = self._clock.monotonic() + limit
        previous: int | None = None
        steady = 0
        while True:
            used = await self._surroundings.used_bytes()
            if used is None or used <= self._baseline + TOLERANCE_BYTES:
                return None
            same = previous is not None and abs(used - previous) <= SAME_BYTES
            steady = steady + 1 if same else 0
            if steady >= STEADY_READINGS or self._clock.monotonic() >= deadline:
                extra = (used - self._baseline) / (1 << 30)
                return f"{extra:.2f} GiB more GPU memory is in use than before the first start; starting anyway"
            previous = used
            await asyncio.sleep(GPU_POLL_SECONDS)


def _signal(processes: list[Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process.pid, number)
