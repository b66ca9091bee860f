"""One server's watch with everything around it real but time, the launcher and the way out."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import io
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from agent.config import Config, Verify
from agent.diagnose import load_catalogue
from agent.journal import Journal
from agent.model import Incident, IncidentState, State
from agent.remediate import Guard, Policy
from agent.serve import AgentMetrics
from agent.watch.narrate import Narrator
from agent.watch.server import ServerWatch
from agent.watch.tasks import end
from agent.watch.world import Current, ServerSpec, World

QUIET = Config(
    poll_seconds=0.05, backoff_seconds=(0,), verify=Verify(hold_seconds=0, serving_seconds=5, request_seconds=1)
)
CATALOGUE = load_catalogue()


class LeapClock:
    """The machine's time, plus what a test leaps over. A sleeper wakes at its time or when it is leapt over."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return datetime.now(timezone.utc) + timedelta(seconds=self._ahead)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.monotonic() + seconds, id(future), future))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(future, seconds)

    def leap(self, seconds: float) -> None:
        self._ahead += seconds
        while self._sleepers and self._sleepers[0][0] <= self.monotonic():
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)


@dataclass
class Watching:
    """A running watch and what it published."""

    watch: ServerWatch
    clock: LeapClock
    journal: Journal
    metrics: AgentMetrics
    said: io.StringIO
    published: list[Incident] = field(default_factory=list)

    @property
    def incidents(self) -> list[Incident]:
        """All incidents as they stand, oldest first."""
        return sorted(self.journal.incidents(), key=lambda one: (one.opened_at, one.id))

    async def until(self, check: Callable[[], object], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"{self.incidents}\n{self.said.getvalue()}"
            await asyncio.sleep(0.005)

    async def state(self, state: State) -> None:
        await self.until(lambda: self.watch.evidence.state() is state)

    async def closed(self, count: int = 1) -> Incident:
        """The newest of ``count`` incidents, once all are closed."""
        await self.until(
            lambda: (
                len(self.incidents) >= count
                and all(one.state.closed for one in self.incidents)
                and self.watch.keeper.active is None
            )
        )
        return self.incidents[-1]

    async def opened(self) -> Incident:
        await self.until(lambda: self.watch.keeper.active is not None)
        active = self.watch.keeper.active
        assert active is not None
        return active


@contextlib.asynccontextmanager
async def watching(
    spec: ServerSpec, folder: Path, *, settings: Config = QUIET, clock: LeapClock | None = None
) -> AsyncIterator[Watching]:
    """Watch until the block ends. The same ``folder`` again is the same agent after a restart."""
    clock = clock or LeapClock()
    said = io.StringIO()
    with Journal.open(folder, clock) as journal:
        published: list[Incident] = []
        metrics = AgentMetrics(clock)
        world = World(
            current=Current(settings),
            journal=journal,
            catalogue=CATALOGUE,
            clock=clock,
            guard=Guard(journal, clock, Policy.from_settings(settings)),
            metrics=metrics,
            narrator=Narrator(said, clock),
            publish=published.append,
        )
        watch = ServerWatch(spec, world)
        task = asyncio.create_task(watch.run())
        try:
            yield Watching(watch, clock, journal, metrics, said, published)
        finally:
            await end([task])
    assert "failed and is begun again" not in said.getvalue(), said.getvalue()


def resolved(incident: Incident) -> bool:
    return incident.state is IncidentState.RESOLVED
