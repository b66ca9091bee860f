"""What a person should do, where the agent may or can do nothing (more).

In: cause and situation. Out: sentences in the imperative with the numbers at hand. Never acts.
"""

from __future__ import annotations

from agent.config import default_modes
from agent.model import Cause, Mechanism, PortFacts, ProcessFacts
from agent.remediate import allocator, batch, neighbour
from agent.remediate.memory_numbers import on_cpu
from agent.remediate.situation import Situation

OWN = frozenset(default_modes())


def advise(cause: Cause, situation: Situation) -> tuple[str, ...]:
    """Most useful first; never empty."""
    nodes = situation.multi_node()
    first = (f"{nodes}: one node is never restarted alone; restart all of them together",) if nodes else ()
    return (*first, *_by_fault(cause, situation))


def _by_fault(cause: Cause, situation: Situation) -> tuple[str, ...]:
    fault = cause.finding.fault
    if fault in ("oom-load", "oom-warmup", "oom-cudagraph", "oom-serving", "gpu-memory-occupied"):
        return _memory(cause, situation)
    special = {
        "kv-cache-none": _no_pool,
        "kv-cache-too-small": _small_pool,
        "triton-ptxas": _assembler,
        "port-in-use": _port,
        "host-oom-kill": _host_memory,
    }.get(fault)
    if special is not None:
        return special(cause, situation)
    fixed = {
        "config-invalid": "Change the setting that vLLM names in the command; the start fails the same way until then.",
        "model-not-found": "Change the model's name or path in the command, or give access to it (HF_TOKEN, a mount).",
        "engine-hang": "Look for a hung card or a stuck collective: `dmesg -T | grep -i xid`, `nvidia-smi`.",
        "engine-dead": "Look at what the host did at that time: `dmesg -T | tail -50` (killed processes, Xid), "
        "`nvidia-smi`, free memory and disk.",
    }
    return (fixed[fault],) if fault in fixed else (*_own(cause), *_unknown(cause))


def _own(cause: Cause) -> tuple[str, ...]:
    """The catalogue's remedies that are no action of the agent, as it states them."""
    return tuple(f"Try: {it.change} ({it.why})" for it in cause.finding.remedies if it.change and it.action not in OWN)


def _unknown(cause: Cause) -> tuple[str, ...]:
    return () if _own(cause) else (f"Find out why it ended: {cause.finding.summary.rstrip('.')}.",)


def _memory(cause: Cause, situation: Situation) -> tuple[str, ...]:
    mechanism = cause.finding.mechanism
    held = neighbour.holders(cause, situation)
    if mechanism in (Mechanism.NEIGHBOUR, Mechanism.ORPHAN) or cause.finding.fault == "gpu-memory-occupied":
        who = "; ".join(held) if held else "who holds the card could not be seen"
        return (f"Free the card: {who}{_why_no_fit(cause, situation)}.",)
    if cause.finding.fault == "oom-load":
        return (
            "The weights do not fit the card: raise --tensor-parallel-size, use a quantised model or a "
            "larger card (never done automatically, since it changes the server).",
        )
    reasons = []
    refused = allocator.refusal(cause, situation)
    if mechanism is Mechanism.FRAGMENTATION and refused:
        reasons.append(f"expandable segments were not set: {refused}")
    if situation.has_hands and not situation.can_append_flags:
        reasons.append("the agent cannot: the command takes no appended flags")
    return (_smaller(situation).rstrip(".") + (f" ({'; '.join(reasons)})." if reasons else "."),)


def _smaller(situation: Situation) -> str:
    """What is left to lower, with the values in force."""
    settings = situation.settings
    seqs, tokens = settings.max_num_seqs, settings.max_num_batched_tokens
    room = settings.gpu_memory_utilization if not on_cpu(situation) else None
    pool = "--gpu-memory-utilization" if not on_cpu(situation) else "VLLM_CPU_KVCACHE_SPACE"
    low_seqs = seqs is not None and int(seqs.value) <= batch.FLOOR_SEQS
    low_tokens = tokens is None or int(tokens.value) <= batch.FLOOR_TOKENS
    pool += f" (now {room.value})" if room is not None else ""
    if low_seqs and low_tokens:
        return (
            f"The batch is at its floor ({batch.FLOOR_SEQS} sequence, {batch.FLOOR_TOKENS} tokens a step), so it is "
            f"not what is too large: lower {pool} or --max-model-len, use a smaller or quantised model, or raise "
            "--tensor-parallel-size."
        )
    flags = ((batch.SEQS_FLAG, seqs), (batch.TOKENS_FLAG, tokens))
    named = [f"{name} (now {it.value})" if it is not None else name for name, it in flags]
    return f"Lower {', '.join(named)} or {pool} in the command."


def _why_no_fit(cause: Cause, situation: Situation) -> str:
    reason = neighbour.fit_refusal(cause, situation)
    return f" (the server was not fitted beside it: {reason})" if reason else ""


def _no_pool(cause: Cause, situation: Situation) -> tuple[str, ...]:
    if on_cpu(situation):
        return ("Raise VLLM_CPU_KVCACHE_SPACE (GiB) within the host's memory.",)
    return (
        "Weights and activations leave nothing for the KV pool: raise --tensor-parallel-size, use a "
        "quantised model, or raise --gpu-memory-utilization together with a lower "
        "--max-num-seqs where the card has room.",
    )


def _small_pool(cause: Cause, situation: Situation) -> tuple[str, ...]:
    more = "VLLM_CPU_KVCACHE_SPACE" if on_cpu(situation) else "--gpu-memory-utilization or --tensor-parallel-size"
    return (f"Lower --max-model-len to the length that vLLM prints, or raise {more}.", *_own(cause))


def _assembler(cause: Cause, situation: Situation) -> tuple[str, ...]:
    seen = [f"{it.path}: {_judged(it.assembles, it.root_owned, it.error)}" for it in situation.assemblers]
    looked = "; ".join(seen) if seen else "no assembler was found in a root-owned folder"
    return (f"Use an image with a newer CUDA toolkit, or install one under /usr/local/cuda (looked at: {looked}).",)


def _judged(assembles: bool | None, root_owned: bool, error: str | None) -> str:
    if assembles is None:
        return f"not tried ({error or 'no reason given'})"
    if not assembles:
        return f"refuses the architecture ({error or 'no reason given'})"
    return "assembles" if root_owned else "assembles, but others than root may replace it"


def _port(cause: Cause, situation: Situation) -> tuple[str, ...]:
    facts = cause.facts if isinstance(cause.facts, PortFacts) else PortFacts()
    port = f"port {facts.port}" if facts.port is not None else "the port"
    return (f"Free {port} (ss -ltnp shows who listens) or start with another --port.",)


def _host_memory(cause: Cause, situation: Situation) -> tuple[str, ...]:
    facts = cause.facts if isinstance(cause.facts, ProcessFacts) else ProcessFacts()
    who = facts.process or "a process of the server"
    return (
        f"The kernel killed {who} for memory: raise the container's memory limit, or lower what the server "
        "takes of the host (--kv-offloading-size, VLLM_CPU_KVCACHE_SPACE, fewer API servers).",
    )
