"""A server that nothing wraps: its URL and, where given, its log files. Everything but the hands.

In: the server's HTTP side, files that somebody else writes. Out: log chunks for the diagnosis, the processes behind
a port of this host. What a file held before the watcher came is evidence and no news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from agent.collect import (
    GpuSource,
    HostSource,
    ListenerProcesses,
    LocalGpu,
    LocalHost,
    LogFile,
    ProcessReading,
    Target,
    VllmClient,
)
from agent.model import Cause, NotMeasured
from agent.remediate import Hands, Situation
from agent.watch.situation import SituationReader
from agent.watch.source import Body, Watched, modes
from agent.watch.world import ServerSpec, World

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class AttachedSide:
    """No launcher, so no exit record, no GPU probe and no verb."""

    hands: Hands | None = None
    trouble: NotMeasured | None = None

    def __init__(self, spec: ServerSpec, watched: Watched, world: World) -> None:
        self._spec = spec
        self._watched = watched
        self._world = world
        self.host: HostSource = LocalHost()
        self.gpu: GpuSource = LocalGpu()
        address = urlsplit(spec.url or "")
        here = address.port if address.hostname in LOCAL else None
        self._processes = ListenerProcesses(here) if here else None
        self._frozen = False
        self._files = [LogFile(path, world.clock, whole_lines=len(spec.logs) > 1) for path in spec.logs]
        self._situation = SituationReader(watched.evidence, None, lambda: modes(world))

    async def connect(self) -> None:
        evidence = self._watched.evidence
        if self._spec.url is None:
            evidence.scrape = NotMeasured(check="vllm metrics", reason="no URL was given")
            return
        target = Target(url=self._spec.url, api_key=self._spec.api_key, tls_ca=self._spec.tls_ca)
        evidence.client = await VllmClient(target, self._world.clock).__aenter__()

    def bodies(self) -> Mapping[str, Body]:
        return {f"log {index}": self._follower(file) for index, file in enumerate(self._files)}

    def _follower(self, file: LogFile) -> Body:
        async def follow() -> None:
            async for data in file.chunks():
                self._world.metrics.log_read(self._spec.name, len(data), 0)
                self._watched.log.feed(data, history=not file.caught_up)
                await asyncio.sleep(0)

        return follow

    def caught_up(self) -> bool:
        return all(file.caught_up for file in self._files)

    async def probe(self) -> None:
        await self.look()
        unread = next((file.unread for file in self._files if file.unread is not None), None)
        self.trouble = unread

    async def look(self) -> None:
        at = self._world.clock.monotonic()
        reading: ProcessReading | NotMeasured
        if self._processes is not None:
            reading = await asyncio.to_thread(self._processes.read)
        else:
            reason = "the server does not listen on a port of this host"
            reading = NotMeasured(check="processes", reason=reason)
        self._watched.evidence.saw_processes(reading, at)

    def frozen(self) -> bool:
        return self._frozen

    async def freeze(self, frozen: bool) -> None:
        """Nothing is ever done to this server; what is said is kept, so that the status shows it."""
        self._frozen = frozen

    async def reset(self) -> None:
        return

    async def situation(self, cause: Cause) -> Situation:
        return await self._situation(cause)

    async def close(self) -> None:
        client, self._watched.evidence.client = self._watched.evidence.client, None
        if client is not None:
            await client.close()
