"""The KV pool holds no request of full length, or there is no pool at all.

``kv-cache-too-small``: vLLM prints the length that fits (vllm/v1/core/kv_cache_utils.py "the estimated
maximum model length is M"). Setting it changes what the API accepts, so a person approves it.
``kv-cache-none``: weights and the activation peak eat the whole budget. A smaller batch lowers the peak; a
higher utilisation widens the budget, but alone it only moves the fault into the warm-up, so it is never
raised without a smaller batch in the same step, and only when the card has the room.
"""

from __future__ import annotations

from agent.model import CacheFacts, Cause
from agent.remediate import batch, neighbour, pool
from agent.remediate.guard import Policy, executed
from agent.remediate.memory_numbers import card, on_cpu
from agent.remediate.overrides import merged
from agent.remediate.plan import Plan
from agent.remediate.proving import proofs_of
from agent.remediate.quantities import size
from agent.remediate.situation import Situation

FIT_LENGTH, RAISE = "kv-fit-length", "kv-raise-utilization"
LENGTH_FLAG = "--max-model-len"
BLOCK = 16
MOST_UTILIZATION = 0.97


def fit_length(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """``--max-model-len`` at the printed length, rounded down to a block of 16 tokens."""
    facts = cause.facts if isinstance(cause.facts, CacheFacts) else CacheFacts()
    printed = facts.estimated_max_model_len
    length = printed // BLOCK * BLOCK if printed is not None else 0
    if printed is None or length < BLOCK or not situation.can_append_flags:
        return ()
    if facts.max_model_len is not None and length >= facts.max_model_len:
        return ()
    present = f"{facts.max_model_len} -> " if facts.max_model_len is not None else ""
    return (
        Plan(
            action=FIT_LENGTH,
            change=f"max-model-len {present}{length}",
            mode=situation.mode(FIT_LENGTH),
            delta=merged(situation.overrides, {LENGTH_FLAG: str(length)}),
            why=(
                *_stated(facts),
                f"vLLM prints {printed} as possible; rounded down to a block of {BLOCK}: {length}",
            ),
            precondition="none: the number is vLLM's own, for this very card and model",
            bounds=("never above the configured length", f"at least one block of {BLOCK} tokens"),
            cost="one restart; requests longer than this are refused with 400",
            undo="agent overrides clear, then a restart",
            proofs=proofs_of(cause.finding.fault, policy),
        ),
    )


def _stated(facts: CacheFacts) -> tuple[str, ...]:
    if facts.needed_bytes is None or facts.available_bytes is None:
        return ()
    length = f" of {facts.max_model_len} tokens" if facts.max_model_len is not None else ""
    return (
        f"one request{length} needs {size(facts.needed_bytes)}, the pool has {size(facts.available_bytes)} "
        "(vLLM's error)",
    )


def make_room(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """For ``kv-cache-none``: first a smaller batch alone, then with a higher utilisation where the card has
    room.
    """
    if on_cpu(situation) or not situation.can_append_flags:
        return ()
    done = sum(1 for action in situation.previous if action.action in ("oom-reduce-batch", RAISE) and executed(action))
    cut = batch.smaller(situation, 0.5, seqs_at_most=256)
    if isinstance(cut, str) or done >= policy.budget_steps:
        return ()
    peak = "pool = utilisation x total - weights - activation peak: a smaller batch lowers the peak"
    plans = [_plan(cause, situation, policy, "oom-reduce-batch", cut, {}, (peak, *cut.why), cut.short)]
    raised = _raised(cause, situation)
    if raised is not None:
        value, why = raised
        flags = {pool.UTILIZATION_FLAG: f"{value:.2f}"}
        short = f"gpu-memory-utilization -> {value:.2f}, {cut.short}"
        plans.append(_plan(cause, situation, policy, RAISE, cut, flags, (why, *cut.why), short))
    return tuple(plans)


def _raised(cause: Cause, situation: Situation) -> tuple[float, str] | None:
    present, room, reading = (
        neighbour.utilization_now(cause, situation),
        neighbour.fitted(cause, situation),
        card(cause, situation),
    )
    if present is None or room is None or reading is None or reading.free_bytes is None:
        return None
    value = min(room, MOST_UTILIZATION)
    if value <= present:
        return None
    return value, (
        f"the card has {size(reading.free_bytes)} free (nvidia-smi): room for utilisation {value:.2f}, was "
        f"{present:g}; raised together with a smaller batch, else the fault moves to the warm-up"
    )


def _plan(
    cause: Cause,
    situation: Situation,
    policy: Policy,
    action: str,
    cut: batch.Batch,
    extra: dict[str, str],
    why: tuple[str, ...],
    short: str,
) -> Plan:
    return Plan(
        action=action,
        change=short,
        mode=situation.mode(action),
        delta=merged(situation.overrides, {**cut.flags, **extra}),
        why=why,
        precondition="the start failed and the overrides are those that the arithmetic started from",
        check=lambda now: None if now.overrides == situation.overrides else "the overrides were changed",
        bounds=cut.bounds,
        cost="one restart; fewer requests at once at the peak",
        undo="agent overrides clear, then a restart",
        proofs=proofs_of(cause.finding.fault, policy),
    )
