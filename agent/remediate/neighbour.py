"""Another process holds the card: fit beside it, or wait for it; never a smaller batch first.

A neighbour's memory is not ours to end. What can be done: lower the utilisation to what it leaves free, when
weights and one request still fit, or wait a bounded time until it is gone (a server that was replaced takes
seconds to give its memory back). Leftovers of our own dead server are ended by the launcher, which ends its
own subtree alone.

At start ("Free memory on device… is less than desired") waiting goes first, for memory is often on its way
back. In serving the neighbour has come to stay, so fitting goes first. When a fit was tried and the memory
still ran out, the next fit also halves the batch.

The fit: utilisation = (free - margin) / total, rounded down to two decimals, over every card that the server
uses. The pool is then utilisation x total - (weights + activation peak), and the latter is the old
utilisation x total - old pool. ``gpus`` must be read after the dead server's own memory is back.
"""

from __future__ import annotations

from agent.model import Cause, GpuReading, Mechanism, MemoryHolder
from agent.remediate import batch, pool
from agent.remediate.guard import Policy, executed
from agent.remediate.memory_numbers import card, card_index, memory, occupancy, on_cpu, stated, total_bytes
from agent.remediate.overrides import in_force, merged
from agent.remediate.plan import Plan, Precondition, Preparation
from agent.remediate.proving import proofs_of
from agent.remediate.quantities import GIB, floor_utilization, size
from agent.remediate.situation import Situation

FIT, WAIT, ORPHANS = "oom-fit-neighbour", "wait-for-memory", "end-orphans"
OCCUPIED = "gpu-memory-occupied"
MARGIN_SHARE = 0.03
# A replaced server gives its memory back within seconds, so waiting is short where fitting is possible; where
# it is not, there is nothing better to do.
WAIT_SECONDS, LONG_WAIT_SECONDS, BLIND_WAIT_SECONDS = 30.0, 900.0, 30.0
LEAST_POOL_SHARE = 0.1
LEAST_KEPT_SHARE = 0.5


def plans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """In order of preference; empty where no card was measured and nothing can be waited for."""
    fit, wait = _fit(cause, situation, policy), _wait(cause, situation, policy)
    orphan = cause.finding.mechanism is Mechanism.ORPHAN
    ends = _end_orphans(cause, situation, policy) if orphan else ()
    return (*ends, *wait, *fit) if orphan or cause.finding.fault == OCCUPIED else (*fit, *wait)


def holders(cause: Cause, situation: Situation) -> tuple[str, ...]:
    """Who holds the card: the log's words first, else the driver's list. Host pids: evidence only."""
    named: tuple[MemoryHolder, ...] = memory(cause).neighbours
    if named:
        return tuple(f"process {it.pid}{_called(it.name)} holds {size(it.used_bytes)}" for it in named)
    reading = card(cause, situation)
    listed = reading.processes if reading is not None else ()
    return tuple(
        f"process {it.pid}{_called(it.name)} holds {size(it.used_bytes) if it.used_bytes else 'unknown'}"
        for it in listed
    )


def _called(name: str | None) -> str:
    return f" ({name})" if name else ""


# -- fit ------------------------------------------------------------------------------------------


def fit_refusal(cause: Cause, situation: Situation) -> str | None:
    """Why the server cannot be fitted beside the neighbour, or None."""
    cpu = on_cpu(situation)
    if cpu:
        return f"{cpu}: there is no card to share"
    if not situation.can_append_flags:
        return "the command takes no appended flags"
    fixed = in_force(situation.overrides, situation.argv, pool.POOL_FLAG)
    if fixed not in (None, "0"):
        return f"{pool.POOL_FLAG} {fixed} is in force: vLLM ignores the utilisation"
    present, new = utilization_now(cause, situation), fitted(cause, situation)
    if new is None:
        return "the free memory of the cards was not measured"
    if present is None:
        return "the utilisation in force is not known"
    if new >= present:
        return f"the cards have room for utilisation {present:g} already"
    return _too_small(cause, situation, present, new)


def fitted(cause: Cause, situation: Situation) -> float | None:
    """The utilisation that every used card has room for; None where one of them was not measured."""
    cards = used_cards(cause, situation)
    rooms = [
        floor_utilization(max(0, it.free_bytes - margin_bytes(cause, it.total_bytes)) / it.total_bytes)
        for it in cards
        if it.free_bytes is not None and it.total_bytes
    ]
    return min(rooms) if rooms and len(rooms) == len(cards) else None


def margin_bytes(cause: Cause, total: int) -> int:
    """Left free: 1 GiB, 3 % of the card or twice the request that failed, whichever is most. A CUDA context
    and activations that vLLM's profile run does not see (prompt logprobs) live there."""
    return max(GIB, int(total * MARGIN_SHARE), 2 * (memory(cause).requested_bytes or 0))


def utilization_now(cause: Cause, situation: Situation) -> float | None:
    """The utilisation that the failed start ran with."""
    setting = situation.settings.gpu_memory_utilization
    return float(setting.value) if setting is not None else occupancy(cause).utilization


def used_cards(cause: Cause, situation: Situation) -> tuple[GpuReading, ...]:
    """The cards that the server uses: all with several ranks, else the one that the message names, else the first."""
    cards = situation.gpus or ()
    ranks = situation.settings.tensor_parallel_size
    if ranks is not None and int(ranks.value) > 1:
        return cards
    named = card(cause, situation)
    return (named,) if named is not None else cards[:1] if card_index(cause) is None else ()


def _too_small(cause: Cause, situation: Situation, present: float, new: float) -> str | None:
    """Why the fitted server could not work, as far as numbers tell."""
    if new < pool.LEAST_UTILIZATION:
        return f"only utilisation {new:.2f} is free, the least is {pool.LEAST_UTILIZATION}"
    pools = _pools(cause, situation, present, new)
    if pools is None:
        kept = new / present
        enough = kept >= LEAST_KEPT_SHARE
        return None if enough else f"only {kept:.0%} of the memory is free, and what the weights need is not known"
    old, fits = pools
    least = _one_request(situation, old)
    return None if fits >= least else f"the pool would have {size(max(fits, 0))}, at least {size(least)} is needed"


def _pools(cause: Cause, situation: Situation, present: float, new: float) -> tuple[int, int] | None:
    """(old pool, new pool) in bytes, None where the old pool or the card's size is not known."""
    old, _ = pool.pool_bytes(situation)
    total = total_bytes(cause, situation)
    if old is None or total is None:
        return None
    return old, old - int((present - new) * total)


def _one_request(situation: Situation, old_pool: int) -> int:
    """Bytes of one request of full length: by the pool's tokens where known, else a tenth of the old pool."""
    tokens, length = situation.settings.kv_pool_tokens, situation.settings.max_model_len
    if tokens is not None and length is not None and int(tokens.value) > 0:
        return int(old_pool * int(length.value) / int(tokens.value))
    return int(old_pool * LEAST_POOL_SHARE)


def _fit(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    done = sum(1 for action in situation.previous if action.action == FIT and executed(action))
    extra = batch.smaller(situation, 0.5) if done else None
    reason = fit_refusal(cause, situation)
    new, present = fitted(cause, situation), utilization_now(cause, situation)
    flags: dict[str, str] = {}
    shorts: list[str] = []
    why: list[str] = [*stated(memory(cause)), *holders(cause, situation)]
    if reason is None and new is not None and present is not None:
        flags[pool.UTILIZATION_FLAG] = f"{new:.2f}"
        shorts.append(f"gpu-memory-utilization {present:g} -> {new:.2f}")
        why += _arithmetic(cause, situation, present, new)
    if isinstance(extra, batch.Batch):
        flags.update(extra.flags)
        shorts.append(extra.short)
        why += ["the fit alone did not hold, so the batch goes down as well", *extra.why]
    if not flags or done >= policy.budget_steps:
        return ()
    return (
        Plan(
            action=FIT,
            change=", ".join(shorts),
            mode=situation.mode(FIT),
            delta=merged(situation.overrides, flags),
            why=tuple(why),
            precondition="the cards still have the memory that the new utilisation asks for",
            check=_still_fits(cause, new if pool.UTILIZATION_FLAG in flags else None),
            bounds=(f"utilisation between {pool.LEAST_UTILIZATION} and {present or 0:g}",),
            cost="one restart; a smaller KV pool while the neighbour is there",
            undo="agent overrides clear, then a restart, once the neighbour is gone",
            proofs=proofs_of(cause.finding.fault, policy),
        ),
    )


def _arithmetic(cause: Cause, situation: Situation, present: float, new: float) -> list[str]:
    lines = []
    for it in used_cards(cause, situation):
        if it.free_bytes is not None and it.total_bytes:
            margin = margin_bytes(cause, it.total_bytes)
            lines.append(
                f"GPU {it.index}: (free {size(it.free_bytes)} (nvidia-smi) - margin {size(margin)}) / "
                f"{size(it.total_bytes)} -> utilisation {new:.2f}, rounded down; was {present:g}"
            )
    pools = _pools(cause, situation, present, new)
    if pools is not None:
        least = size(_one_request(situation, pools[0]))
        exact = situation.settings.kv_pool_tokens is not None and situation.settings.max_model_len is not None
        rule = f"one full request needs {least}" if exact else f"the least allowed is a tenth of the old, {least}"
        lines.append(f"KV pool {size(pools[0])} -> about {size(pools[1])}; {rule}")
    else:
        lines.append("the old KV pool is not known: vLLM itself will say at start whether one request fits")
    return lines


def _still_fits(cause: Cause, new: float | None) -> Precondition:
    def check(now: Situation) -> str | None:
        if new is None:
            return None
        room = [
            f"GPU {it.index} has {size(it.free_bytes)} free, {size(int(new * it.total_bytes))} is needed"
            for it in used_cards(cause, now)
            if it.free_bytes is not None and it.total_bytes and it.free_bytes < new * it.total_bytes
        ]
        return room[0] if room else None

    return check


# -- wait and orphans -----------------------------------------------------------------------------


def _needed(cause: Cause, situation: Situation) -> int | None:
    """Bytes that a start with the present utilisation needs on the card."""
    present, total = utilization_now(cause, situation), total_bytes(cause, situation)
    if occupancy(cause).requested_bytes is not None:
        return occupancy(cause).requested_bytes
    return int(present * total) if present is not None and total is not None else None


def _wait(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    needed = _needed(cause, situation)
    if needed is None or on_cpu(situation):
        return ()
    reading = card(cause, situation)
    free = reading.free_bytes if reading is not None else None
    seconds = WAIT_SECONDS if fit_refusal(cause, situation) is None else LONG_WAIT_SECONDS
    change = f"wait up to {seconds:g} s until {size(needed)} is free on {_name(reading)}"
    seen = f"free {size(free)} (nvidia-smi)" if free is not None else ""
    if free is None:
        seconds, seen = BLIND_WAIT_SECONDS, "free memory cannot be measured: vLLM itself will say at start"
        change = f"wait {seconds:g} s for {size(needed)}, then start"
    return (
        Plan(
            action=WAIT,
            change=change,
            mode=situation.mode(WAIT),
            delta=situation.overrides,
            why=(*holders(cause, situation), f"needed {size(needed)}, {seen}"),
            precondition="none: waiting changes nothing",
            cost=f"up to {seconds:g} s, then one restart",
            undo="nothing to undo",
            proofs=proofs_of(cause.finding.fault, policy),
            preparation=Preparation.WAIT_FOR_MEMORY,
            gpu=card_index(cause),
            needed_bytes=needed,
            wait_seconds=seconds,
        ),
    )


def _name(reading: GpuReading | None) -> str:
    return "the card" if reading is None else f"GPU {reading.index}"


def _end_orphans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    return (
        Plan(
            action=ORPHANS,
            change="end left-over processes of this server",
            mode=situation.mode(ORPHANS),
            delta=situation.overrides,
            why=holders(cause, situation),
            precondition="they are in the launcher's own subtree (the launcher checks it)",
            bounds=("never a process outside the launcher's subtree",),
            cost="one restart",
            undo="cannot be undone; the processes served nobody",
            proofs=proofs_of(cause.finding.fault, policy),
            preparation=Preparation.END_ORPHANS,
        ),
    )
