"""The machine under a server, in rounds: the host with its container.

In: readings of the source's side (the launcher's, or this one's for a server without a launcher). Out: samples for
``/metrics`` and the rules on them, and what could not be measured. What a round did not bring is gone: nothing old is
shown as now.
"""

from __future__ import annotations

from agent.collect import HostReader, HostSource, ProcessReading
from agent.model import NotMeasured
from agent.watch.evidence import ServerEvidence
from agent.watch.world import World

HOST_SECONDS = 5.0


class Hardware:
    """Of one server."""

    def __init__(self, server: str, world: World, evidence: ServerEvidence, host: HostSource) -> None:
        self._server = server
        self._metrics = world.metrics
        self._evidence = evidence
        self._host = HostReader(server, host)
        self._missing: tuple[NotMeasured, ...] = ()

    async def host_round(self) -> None:
        """Read host, container and the server's processes."""
        processes = self._evidence.processes
        pids = [one.pid for one in processes.members] if isinstance(processes, ProcessReading) else []
        reading = await self._host.read(pids)
        self._metrics.bring(f"host/{self._server}", reading.samples)
        self._missing = reading.not_measured

    def not_measured(self) -> tuple[NotMeasured, ...]:
        """What the last round could not see."""
        return self._missing
