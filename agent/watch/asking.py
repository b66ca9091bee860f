"""What one round asks of the server: ``/metrics``, and ``/health`` only where it can tell something new.

In: what is known of the server. Out: the answers, fed into the evidence. Both come from the same process: where
``/metrics`` is answered, ``/health`` adds one thing, whether the engine behind it is known to be dead (503,
vllm/entrypoints/serve/instrumentator/health.py). So a server that serves, with series that move or with no work, costs
one GET in most rounds. ``/health`` is asked in the same round wherever ``/metrics`` fails, has no series of vLLM's,
or stands still under work, and in every round of a server that does not serve: no death is seen later than by asking
always, but for an engine that dies without work while its server stays.
"""

from __future__ import annotations

from agent.collect import HealthKind, Scrape, VllmClient
from agent.model import Clock, NotMeasured, State
from agent.watch.evidence import ServerEvidence

# A launcher tells of every exit, so a 503 is only needed for an engine that died alone.
OWNED_SECONDS = 5.0
# Without one, 503 is the only word on a dead engine.
ATTACHED_SECONDS = 2.0
QUIET = (State.SERVING, State.SATURATED, State.PAUSED)


class Asking:
    """One server's rounds. ``owned``: a launcher tells of its exits."""

    def __init__(self, evidence: ServerEvidence, clock: Clock, *, owned: bool) -> None:
        self._evidence = evidence
        self._clock = clock
        self._seconds = OWNED_SECONDS if owned else ATTACHED_SECONDS
        self._asked: tuple[VllmClient, int, float] | None = None

    async def round(self, client: VllmClient) -> Scrape | NotMeasured:
        """Ask once; what ``/metrics`` said."""
        evidence = self._evidence
        evidence.saw_milestones()
        first = self._due(client)
        if first:
            await self._health(client)
        scrape = await client.scrape()
        evidence.saw_scrape(scrape)
        if not first and (evidence.load is None or evidence.stands_still(self._clock.monotonic())):
            await self._health(client)
        return scrape

    def _due(self, client: VllmClient) -> bool:
        evidence, asked = self._evidence, self._asked
        if asked is None or asked[:2] != (client, evidence.start_seq()):
            return True
        well = evidence.health is not None and evidence.health.kind is HealthKind.OK
        if not well or evidence.state() not in QUIET or evidence.load is None:
            return True
        now = self._clock.monotonic()
        return now - asked[2] >= self._seconds or evidence.stands_still(now)

    async def _health(self, client: VllmClient) -> None:
        self._asked = (client, self._evidence.start_seq(), self._clock.monotonic())
        self._evidence.saw_health(await client.health())
