"""The watcher as the launcher's second child (``agent run``).

In: a command line. Out: a process that is there again when it dies, after 1, 2, 4 … 60 s. Its death never
touches the server; on a stop it goes last, with ten seconds to finish its journal and its messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from agent.launch.children import Reaper, spawn
from agent.launch.events import Events
from agent.launch.guard import Guard
from agent.launch.policy import backoff

STEADY_SECONDS = 60.0
FINISH_SECONDS = 10.0


class Companion:
    """Keeps one watcher alive until :meth:`stop`."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], reaper: Reaper, guard: Guard, events: Events
    ) -> None:
        self._argv = argv
        self._env = env
        self._reaper = reaper
        self._guard = guard
        self._events = events
        self._ended: asyncio.Future[int] | None = None
        self._task: asyncio.Task[None] | None = None
        self.pid: int | None = None

    def start(self) -> None:
        """Start it now and keep it alive."""
        self._task = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            begun = loop.time()
            code = await self._one_life()
            deaths = 1 if loop.time() - begun >= STEADY_SECONDS else deaths + 1
            delay = backoff(deaths)
            self._events.add("notice", text=f"the watcher ended ({code}); it is started again in {delay:g} s")
            await asyncio.sleep(delay)

    async def _one_life(self) -> object:
        try:
            process = spawn(self._argv, self._env, stdout=2, stderr=2, in_child=lambda: self._guard.announce("term"))
        except OSError as error:
            return f"cannot be run: {error.strerror or error}"
        self.pid = process.pid
        self._guard.tell("term", process.pid)
        self._ended = self._reaper.expect(process.pid, process)
        try:
            return await asyncio.shield(self._ended)
        finally:
            if self._ended.done():
                self._guard.tell("forget", process.pid)
                self.pid = None

    def send(self, number: int) -> None:
        """Hand a signal on (SIGHUP: read the configuration again)."""
        if self.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    async def stop(self) -> None:
        """SIGTERM, ten seconds, SIGKILL."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.pid is None or self._ended is None or self._ended.done():
            return
        self.send(signal.SIGTERM)
        await asyncio.wait({self._ended}, timeout=FINISH_SECONDS)
        if not self._ended.done():
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            await asyncio.wait({self._ended}, timeout=1.0)
