"""Reading the card when it has come to rest.

A server that died gives its GPU memory back over some seconds, so a reading right after the exit counts the
dead server as its own neighbour. For faults whose repair is worked out from free memory the reading is
repeated until two in a row agree, ten seconds at most; an unsteady card (a living neighbour that grows) is
then taken as it is.
"""

from __future__ import annotations

from agent.model import Cause, Clock, Mechanism
from agent.remediate.ports import SituationSource
from agent.remediate.quantities import MIB
from agent.remediate.situation import Situation

INTERVAL_SECONDS, LONGEST_SECONDS = 1.0, 10.0
TOLERANCE_BYTES = 64 * MIB
BY_FREE_MEMORY = frozenset({"gpu-memory-occupied", "kv-cache-none"})


async def settled(cause: Cause, source: SituationSource, clock: Clock, *, dead: bool) -> Situation:
    """The situation; read again until the cards agree where that matters."""
    situation = await source(cause)
    foreign = cause.finding.mechanism in (Mechanism.NEIGHBOUR, Mechanism.ORPHAN)
    if not dead or not situation.gpus or not (foreign or cause.finding.fault in BY_FREE_MEMORY):
        return situation
    deadline = clock.monotonic() + LONGEST_SECONDS
    while clock.monotonic() < deadline:
        await clock.sleep(INTERVAL_SECONDS)
        again = await source(cause)
        if _agree(situation, again):
            return again
        situation = again
    return situation


def _agree(one: Situation, two: Situation) -> bool:
    pairs = zip(one.gpus or (), two.gpus or (), strict=False)
    return all(
        a.free_bytes is None or b.free_bytes is None or abs(a.free_bytes - b.free_bytes) <= TOLERANCE_BYTES
        for a, b in pairs
    )
