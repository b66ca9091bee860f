"""Out of memory by the batch (or by an unknown mechanism): a smaller batch, and the freed memory kept free.

One family for all phases. In serving: both limits halved, the pool held. In warm-up: the sampler is warmed
with max-num-seqs dummy requests (vllm/v1/worker/gpu_model_runner.py), so the sequences go down to 256 first,
and the utilisation with them. In graph capture: the pool has taken what the graphs need, so the utilisation
goes down first and the sequences only in later steps. At load only the weights count: no batch helps, see
:mod:`agent.remediate.advice`.

How far down, a stepping remedy whose next step starts from what the last one left:

* Half, because the message tells of one allocation in the middle of a step and not of those that would have come
  after it. On an H200 the burst that had killed the server took 14.1 s with half the batch and 13.9 s with all of
  it, while a step that does not hold costs every request in flight and a start of a minute. So at least half is
  given up, even where the numbers would allow less.
* Less than half where the numbers prove, by a margin, that half cannot hold. With A the activations in use
  (allocated by PyTorch minus KV pool and weights; weights that the log does not state stay in it, which errs to the
  larger batch), R the request that failed, F what was free or reserved: at most (A + F) / (A + R) of the step fits.
  Not below a quarter in one step, for a cost that grows faster than the batch would make the formula overshoot.
* The last step quarters: behind it stands a server that is down.

So 64 goes 32, 16, 8, 2 and never past the batch that holds by more than half of it before the last step.
"""

from __future__ import annotations

from agent.model import Cause, Mechanism
from agent.remediate import pool
from agent.remediate.batch import Batch, smaller
from agent.remediate.guard import Policy, executed
from agent.remediate.memory_numbers import memory, on_cpu, stated
from agent.remediate.overrides import merged
from agent.remediate.plan import Plan, Precondition
from agent.remediate.proving import proofs_of
from agent.remediate.quantities import size
from agent.remediate.situation import Situation

ACTION = "oom-reduce-batch"
WARMUP_SEQS = 256
HALF, QUARTER = 0.5, 0.25
# The message rounds its sizes and one step's work is not exactly proportional: 0.49 proves nothing against a half.
NEARLY_HALF = 0.45


def steps_done(situation: Situation) -> int:
    """Steps of this remedy that were carried out in this incident."""
    return sum(1 for action in situation.previous if action.action == ACTION and executed(action))


def plans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """The next step, or none at the floors, after the last step, or where flags cannot be appended."""
    step = steps_done(situation) + 1
    if step > policy.budget_steps or not situation.can_append_flags or cause.finding.fault == "oom-load":
        return ()
    share, proof = _share(cause, situation, last=1 < step == policy.budget_steps)
    batch, kept = _numbers(cause, situation, step, share)
    flags = {**(batch.flags if isinstance(batch, Batch) else {}), **kept.flags}
    if isinstance(batch, str) and not kept.flags:
        return ()
    shorts = [batch.short if isinstance(batch, Batch) else "", kept.short]
    why = (*proof, *batch.why) if isinstance(batch, Batch) else (batch,)
    return (
        Plan(
            action=ACTION,
            change=", ".join(short for short in shorts if short),
            mode=situation.mode(ACTION),
            delta=merged(situation.overrides, flags),
            why=(*stated(memory(cause)), *_mechanism(cause), *why, *kept.why),
            precondition="the limits in force are still those that the arithmetic started from",
            check=_unchanged(situation),
            bounds=batch.bounds if isinstance(batch, Batch) else (),
            cost="one restart; fewer requests at once at the peak",
            undo="agent overrides clear, then a restart",
            proofs=proofs_of(cause.finding.fault, policy),
        ),
    )


def _share(cause: Cause, situation: Situation, *, last: bool) -> tuple[float, tuple[str, ...]]:
    """Which share of the batch is kept, and the arithmetic where it is not simply half."""
    if last:
        return QUARTER, ("the last step of this incident: a quarter, for behind it the server stays down",)
    facts = memory(cause)
    old, _ = pool.pool_bytes(situation)
    requested, allocated = facts.requested_bytes, facts.allocated_bytes
    loaded = situation.settings.weights_bytes
    weights = int(loaded.value) if loaded is not None else 0
    if old is None or requested is None or allocated is None or allocated <= old + weights:
        return HALF, ()
    used = allocated - old - weights
    room = (facts.free_bytes or 0) + (facts.reserved_unallocated_bytes or 0)
    fits = (used + room) / (used + requested)
    if fits >= NEARLY_HALF:
        return HALF, ()
    beside = "weights and KV pool" if weights else "KV pool"
    line = (
        f"at most ({size(used)} in use beside {beside} + {size(room)} free or reserved) / ({size(used)} + request "
        f"{size(requested)}) = {fits:.2f} of the step fits: half cannot hold"
    )
    return max(QUARTER, fits), (line,)


def _numbers(cause: Cause, situation: Situation, step: int, share: float) -> tuple[Batch | str, pool.Memory]:
    fault = cause.finding.fault
    if fault == "oom-cudagraph" and not on_cpu(situation):
        room = pool.lowered(cause, situation)
        if step == 1 and room.flags:
            return "the graphs need room beside the pool: the batch stays as it is in this step", room
        return smaller(situation, share), room
    if fault == "oom-warmup":
        return smaller(situation, share, seqs_at_most=WARMUP_SEQS), (
            pool.held(cause, situation, step) if on_cpu(situation) else pool.lowered(cause, situation)
        )
    return smaller(situation, share), pool.held(cause, situation, step)


def _mechanism(cause: Cause) -> tuple[str, ...]:
    facts, mechanism = memory(cause), cause.finding.mechanism
    reserve, requested = facts.reserved_unallocated_bytes, facts.requested_bytes
    if mechanism is None:
        return ("the mechanism could not be decided from the numbers: the batch is what can be given up",)
    if mechanism is Mechanism.BATCH and reserve is not None and requested is not None and reserve < requested:
        return (f"reserve {size(reserve)} < request {size(requested)}: not fragmentation, the batch is too large",)
    return ()


def _unchanged(planned: Situation) -> Precondition:
    def check(now: Situation) -> str | None:
        same = now.overrides == planned.overrides
        return None if same else "the overrides were changed since the plan was made"

    return check
