"""What becomes of the memory that a smaller batch frees: it must not go to the KV pool.

vLLM sizes the pool as utilisation x total - weights - activation peak (vllm/v1/worker/gpu_worker.py), so a
smaller batch alone makes the pool larger and leaves the card as full as before (measured: pool 130.68 ->
132.56 GiB). In the same step the pool is therefore held at its old size with ``--kv-cache-memory-bytes``, or,
where its size is not known, the utilisation is lowered by what was missing.

In: cause and situation. Out: flags and their arithmetic, possibly none with the reason. On vLLM's CPU build
both flags have no effect on the pool and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import Cause, Mechanism
from agent.remediate.memory_numbers import memory, on_cpu, total_bytes
from agent.remediate.overrides import in_force
from agent.remediate.quantities import GIB, floor_utilization, size, version
from agent.remediate.situation import Situation

POOL_FLAG, UTILIZATION_FLAG = "--kv-cache-memory-bytes", "--gpu-memory-utilization"
BLOCKS_FLAG = "--num-gpu-blocks-override"
POOL_FLAG_SINCE = (0, 11)
LEAST_UTILIZATION = 0.05
LEAST_MARGIN_BYTES = GIB
MARGIN_SHARE = 0.01
SHRINK_FROM_STEP = 3


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Flags that go with a batch, and why."""

    flags: dict[str, str]
    why: tuple[str, ...]
    short: str = ""


def held(cause: Cause, situation: Situation, step: int) -> Memory:
    """Keep freed memory free. From the third step on, or on a full card, the pool itself gives way."""
    cpu = on_cpu(situation)
    if cpu:
        return Memory(flags={}, why=(f"{cpu}: the flags of the GPU's pool have no effect and are left out",))
    blocks = in_force(situation.overrides, situation.argv, BLOCKS_FLAG)
    if blocks is not None:
        return Memory(flags={}, why=(f"the pool stays as it is: {BLOCKS_FLAG} {blocks}",))
    shrink = step >= SHRINK_FROM_STEP or cause.finding.mechanism is Mechanism.FULL
    old, source = pool_bytes(situation)
    if old is not None and _has_pool_flag(situation):
        return _pinned(cause, situation, old, source, shrink)
    return lowered(cause, situation)


def lowered(cause: Cause, situation: Situation) -> Memory:
    """The utilisation lowered by the request that failed and a margin, never raised, never below 0.05.

    With a pool of fixed size in force vLLM ignores the utilisation, so the pool is made smaller instead.
    """
    fixed = in_force(situation.overrides, situation.argv, POOL_FLAG)
    if fixed is not None and fixed.isdigit() and int(fixed) > 0:
        return _pinned(cause, situation, int(fixed), POOL_FLAG, shrink=True)
    setting, total = situation.settings.gpu_memory_utilization, total_bytes(cause, situation)
    if setting is None or total is None:
        missing = "the utilisation" if setting is None else "the card's size"
        return Memory(flags={}, why=(f"{missing} is not known: memory that the smaller batch frees goes to the pool",))
    need = memory(cause).requested_bytes or 0
    present, margin = float(setting.value), margin_bytes(total)
    new = max(LEAST_UTILIZATION, floor_utilization(present - (need + margin) / total))
    if new >= present:
        return Memory(flags={}, why=(f"the utilisation stays at {present:g}: its floor is {LEAST_UTILIZATION}",))
    why = (
        f"utilisation {present:g} ({setting.source}) - (request {size(need)} + margin {size(margin)}) / "
        f"card {size(total)} -> {new:.2f}, rounded down"
    )
    return Memory(
        flags={UTILIZATION_FLAG: f"{new:.2f}"},
        why=(why,),
        short=f"gpu-memory-utilization {present:g} -> {new:.2f}",
    )


def margin_bytes(total: int) -> int:
    """What is left free beside the request: 1 GiB, or 1 % of a large card."""
    return max(LEAST_MARGIN_BYTES, int(total * MARGIN_SHARE))


def pool_bytes(situation: Situation) -> tuple[int | None, str]:
    """The pool's size in bytes and who says so; a size in force by flag wins over the log."""
    flag = in_force(situation.overrides, situation.argv, POOL_FLAG)
    if flag is not None and flag.isdigit() and int(flag) > 0:
        return int(flag), POOL_FLAG
    setting = situation.settings.kv_pool_bytes
    return (int(setting.value), setting.source) if setting is not None else (None, "")


def _pinned(cause: Cause, situation: Situation, old: int, source: str, shrink: bool) -> Memory:
    total = total_bytes(cause, situation)
    give = (memory(cause).requested_bytes or 0) + margin_bytes(total or 0) if shrink else 0
    new = old - give if old - give >= old // 2 else old // 2
    if not shrink:
        why = (
            f"KV pool held at {size(old)} ({source}) = {new} bytes: vLLM gives what a smaller batch frees "
            "to the pool (pool = utilisation x total - weights - activation peak)"
        )
        return Memory(flags={POOL_FLAG: str(new)}, why=(why,), short=f"KV pool held at {size(old)}")
    why = f"KV pool {size(old)} ({source}) - request and margin {size(give)} -> {size(new)} = {new} bytes"
    return Memory(flags={POOL_FLAG: str(new)}, why=(why,), short=f"KV pool {size(old)} -> {size(new)}")


def _has_pool_flag(situation: Situation) -> bool:
    found = version(situation.vllm_version or situation.settings.vllm_version)
    return found is None or found >= POOL_FLAG_SINCE
