"""Cause + situation -> plans in order of preference. Pure: no clock, no I/O, the same answer for the same
question.

The table below says which family speaks for which fault; each family is one module. A plain restart comes
last and only where it may help. Several nodes, or no launcher, change nothing here: the guard decides whether
acting is allowed, planning only says what would help.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.model import ActionState, Cause, Mechanism
from agent.remediate import allocator, assembler, cache, graphs, neighbour, restarting, smaller_batch
from agent.remediate.guard import Policy
from agent.remediate.plan import Plan
from agent.remediate.situation import Situation

Family = Callable[[Cause, Situation, Policy], tuple[Plan, ...]]

MEMORY: tuple[Family, ...] = (allocator.plans, smaller_batch.plans)

FAMILIES: dict[str, tuple[Family, ...]] = {
    "oom-serving": MEMORY,
    "oom-warmup": MEMORY,
    "oom-cudagraph": (*MEMORY, graphs.plans),
    "oom-load": MEMORY,
    "gpu-memory-occupied": (neighbour.plans,),
    "kv-cache-none": (cache.make_room,),
    "kv-cache-too-small": (cache.fit_length,),
    "triton-ptxas": (assembler.plans,),
}

# When the fault comes back after one of these, its change is kept and the next step goes further.
STEPPING = frozenset({smaller_batch.ACTION, neighbour.FIT, cache.RAISE})

# An interrupted action proved nothing and a waiting one is not decided: both may be planned again.
TRIED = frozenset(ActionState) - {
    ActionState.INTERRUPTED,
    ActionState.AWAITING_APPROVAL,
    ActionState.APPROVED,
    ActionState.RUNNING,
    ActionState.VERIFYING,
}


def plan(cause: Cause, situation: Situation, policy: Policy | None = None) -> tuple[Plan, ...]:
    """Every plan that would help and was not tried in this incident, best first; () = only advice is left."""
    limits = policy if policy is not None else Policy()
    families = (*_families(cause), restarting.plans)
    made = [it for family in families for it in family(cause, situation, limits)]
    tried = {f"{it.action} {it.change}" for it in situation.previous if it.state in TRIED}
    return tuple(it for it in made if it.key not in tried)


def _families(cause: Cause) -> tuple[Family, ...]:
    """A neighbour is never answered with a smaller batch first, whatever phase the memory ran out in."""
    fault = cause.finding.fault
    foreign = cause.finding.mechanism in (Mechanism.NEIGHBOUR, Mechanism.ORPHAN)
    if fault.startswith("oom-") and foreign:
        return (neighbour.plans,)
    return FAMILIES.get(fault, ())
