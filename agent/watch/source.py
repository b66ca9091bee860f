"""What a source of evidence is, and what it feeds: two protocols, so that either side can be a test's own.

A source connects, names the tasks that bring evidence, makes a round of slow probes, and has hands or none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from agent.collect import GpuSource, HostSource
from agent.model import Cause, Exit, Mode, NotMeasured
from agent.remediate import Hands, Situation
from agent.watch.evidence import ServerEvidence
from agent.watch.liveness import Child
from agent.watch.startlog import StartLog
from agent.watch.world import World

Body = Callable[[], Awaitable[None]]


class Watched(Protocol):
    """The part of :class:`agent.watch.server.ServerWatch` that a source feeds."""

    name: str
    log: StartLog
    evidence: ServerEvidence

    @property
    def acting(self) -> bool:
        """A repair is under way."""
        ...

    def began(self, *, at: int | None, child: Child = Child.STARTING) -> None:
        """A start of the server whose output begins at ``at``."""
        ...

    async def ended(self, record: Exit) -> None:
        """The newest start has ended and nothing runs."""
        ...

    def missed(self, record: Exit, cause: Cause | None) -> None:
        """A start ended while no agent watched, and another has begun since."""
        ...


class Source(Protocol):
    """``hands`` None: nothing may be done to the server. ``trouble``: why the source itself cannot be read."""

    @property
    def hands(self) -> Hands | None: ...

    @property
    def trouble(self) -> NotMeasured | None: ...

    @property
    def host(self) -> HostSource:
        """Who can read host and container on the server's side."""
        ...

    @property
    def gpu(self) -> GpuSource:
        """Who can ask the driver of the server's cards."""
        ...

    async def connect(self) -> None:
        """Wait until there is something to watch."""
        ...

    def bodies(self) -> Mapping[str, Body]:
        """The tasks that bring evidence, by name; each is begun again when it fails."""
        ...

    async def probe(self) -> None:
        """One round of what is slow to ask."""
        ...

    async def look(self) -> None:
        """Read the server's processes."""
        ...

    def frozen(self) -> bool: ...

    async def freeze(self, frozen: bool) -> None:
        """Raises LauncherError."""
        ...

    async def reset(self) -> None:
        """Close the breaker on the other side too. Raises LauncherError."""
        ...

    def caught_up(self) -> bool:
        """Whether everything that the log held at the beginning was read."""
        ...

    async def situation(self, cause: Cause) -> Situation: ...

    async def close(self) -> None: ...


def modes(world: World) -> dict[str, Mode]:
    """How each action may be taken now; a reload of the configuration changes it."""
    settings = world.current.value
    return {action: settings.mode(action) for action in settings.actions}
