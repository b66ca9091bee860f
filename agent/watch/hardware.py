"""The machine under a server, in rounds: its cards, the host and the container.

In: readings of the source's side (the launcher's, or this one's for a server without a launcher). Out: samples for
``/metrics`` and the rules on them, the cards' memory and work for the judging of the server, each Xid once, and what
could not be measured. What a round did not bring is gone: nothing old is shown as now.
"""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec

from agent.collect import GpuRounds, GpuSource, HostReader, HostSource, ProcessReading, Xid
from agent.model import Cause, Evidence, NotMeasured, rfc3339
from agent.watch.evidence import ServerEvidence
from agent.watch.world import World

HOST_SECONDS = 5.0
GPU_SECONDS = 5.0
# A card's utilisation covers the last second at most (nvml.h), so a doubtful engine is looked at that often.
SUSPECT_SECONDS = 1.0
XID_SECONDS = 600.0


class Hardware:
    """Of one server."""

    def __init__(self, server: str, world: World, evidence: ServerEvidence, host: HostSource, gpu: GpuSource) -> None:
        self._server = server
        self._world = world
        self._evidence = evidence
        self._host = HostReader(server, host)
        self._gpu = GpuRounds(server, gpu)
        self._host_missing: tuple[NotMeasured, ...] = ()
        self._gpu_missing: tuple[NotMeasured, ...] = ()

    async def host_round(self) -> None:
        """Read host, container and the server's processes."""
        reading = await self._host.read(self._pids())
        self._world.metrics.bring(f"host/{self._server}", reading.samples)
        self._host_missing = reading.not_measured

    async def gpu_round(self) -> None:
        """Read the cards; what is costly too, where an engine is in doubt."""
        now = self._world.clock.monotonic()
        reading = await self._gpu.read(now, asked=self._doubt(), pids=self._pids())
        self._world.metrics.bring(f"gpu/{self._server}", reading.samples)
        self._gpu_missing = reading.not_measured
        self._evidence.saw_cards(reading, self._world.clock.monotonic())
        for xid in reading.xids:
            self._saw_xid(xid)

    def gpu_pace(self) -> float:
        """Seconds between two rounds."""
        return SUSPECT_SECONDS if self._doubt() else GPU_SECONDS

    def not_measured(self) -> tuple[NotMeasured, ...]:
        """What the last rounds could not see."""
        return (*self._gpu_missing, *self._host_missing)

    def close(self) -> None:
        """End what was started for asking."""
        self._gpu.close()

    def _doubt(self) -> bool:
        return self._evidence.stands_still(self._world.clock.monotonic())

    def _pids(self) -> list[int]:
        processes = self._evidence.processes
        return [one.pid for one in processes.members] if isinstance(processes, ProcessReading) else []

    def _saw_xid(self, xid: Xid) -> None:
        """Said once, also across restarts: a new watcher is told of those before it again."""
        if self._world.journal.claim(f"{self._server}/xid/{xid.uuid}/{xid.number}/{xid.at}"):
            self._world.journal.append_event("xid", self._server, msgspec.to_builtins(xid))
            self._world.narrator.line(f"{self._server}: the driver reports Xid {xid.number} of GPU {xid.gpu}")


def with_xids(cause: Cause, xids: tuple[Xid, ...], now: datetime) -> Cause:
    """The cause with what the driver reported of the cards shortly before: beside the log's words, not above."""
    since = now.timestamp() - XID_SECONDS
    told = tuple(
        Evidence(
            source="gpu driver",
            where=f"GPU {one.gpu} {one.uuid}".rstrip(),
            text=f"Xid {one.number} at {rfc3339(datetime.fromtimestamp(one.at, timezone.utc))}",
        )
        for one in xids
        if one.at >= since
    )
    finding = msgspec.structs.replace(cause.finding, evidence=(*cause.finding.evidence, *told))
    return msgspec.structs.replace(cause, finding=finding) if told else cause
