"""Fragmentation: the memory is there, but in pieces. Expandable segments give it back at an unchanged batch.

Chosen when the reserve that PyTorch holds but does not use covers the request that failed: then the card had
room, only not in one piece. Measured on an H200 (vLLM 0.25.1): request 1 GiB, reserve 1.76 GiB; the same
burst that killed the server was answered 100 of 100 with ``expandable_segments:True`` at the same batch. Not
offered where vLLM refuses it (a KV connector: vllm/config/vllm.py "incompatible with
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"; sleep mode: vllm/device_allocator/cumem.py asserts the
same) or where it is in force already. Not handled: ROCm, whose PyTorch reads PYTORCH_HIP_ALLOC_CONF;
there the batch is what is given up.

There is no floor on the reserve here: diagnosis alone decides the mechanism, and a wrong guess costs one
restart and no throughput.
"""

from __future__ import annotations

from agent.model import Cause, Mechanism
from agent.remediate.guard import Policy
from agent.remediate.memory_numbers import memory, on_cpu, stated
from agent.remediate.overrides import merged
from agent.remediate.plan import Plan
from agent.remediate.proving import proofs_of
from agent.remediate.quantities import size
from agent.remediate.situation import Situation

ACTION = "oom-expandable-segments"
LEGACY, MODERN, HIP = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"
OPTION = "expandable_segments"
SWITCHES = {
    "--kv-transfer-config": "a KV connector",
    "--enable-sleep-mode": "its sleep-mode allocator",
    "--enable-cumem-allocator": "its sleep-mode allocator",
}


def refusal(cause: Cause, situation: Situation) -> str | None:
    """Why expandable segments may not be set here, or None."""
    return _on_rocm(cause, situation) or _refusal(situation)


def _on_rocm(cause: Cause, situation: Situation) -> str | None:
    """Known by the build's version, the operator's variable, or the allocator's own words ("HIP out of memory")."""
    versions = (situation.vllm_version, situation.settings.vllm_version)
    signs = any("+rocm" in text for text in versions if text) or bool(situation.env.get(HIP))
    if signs or any("HIP out of memory" in it.text for it in cause.finding.evidence):
        return f"this is a ROCm build: {HIP} is not handled"
    return None


def _refusal(situation: Situation) -> str | None:
    cpu = on_cpu(situation)
    if cpu:
        return f"{cpu}: there is no CUDA allocator"
    connector = situation.settings.kv_connector
    if connector is not None and str(connector.value).lower() not in ("", "none", "false"):
        return f"vLLM refuses expandable segments with a KV connector ({connector.value}, {connector.source})"
    words = {word.partition("=")[0].replace("_", "-") for word in situation.argv}
    for switch, owner in SWITCHES.items():
        if switch in words:
            return f"vLLM refuses expandable segments with {owner} ({switch})"
    if any(_switched_on(value) for value in _values(situation).values()):
        return "expandable segments are in force already"
    return None


def plans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """One plan, or none when the numbers do not say fragmentation or vLLM refuses the setting."""
    facts = memory(cause)
    requested, reserve = facts.requested_bytes, facts.reserved_unallocated_bytes
    if cause.finding.mechanism is not Mechanism.FRAGMENTATION or refusal(cause, situation) is not None:
        return ()
    if requested is not None and reserve is not None and reserve < requested:
        return ()
    env = {name: _with_option(value) for name, value in _values(situation).items()}
    change = ", ".join(f"{name}={value}" for name, value in env.items())
    return (
        Plan(
            action=ACTION,
            change=change,
            mode=situation.mode(ACTION),
            delta=merged(situation.overrides, env=dict(env)),
            why=(*stated(facts), *_reasoning(requested, reserve)),
            precondition="vLLM allows expandable segments here and they are not in force",
            check=lambda now: refusal(cause, now),
            bounds=("the batch stays as it is", "other parts of the variable stay as the operator set them"),
            cost="one restart; no throughput given up",
            undo="remove the variable: agent overrides clear, then a restart",
            proofs=proofs_of(cause.finding.fault, policy),
        ),
    )


def _reasoning(requested: int | None, reserve: int | None) -> tuple[str, ...]:
    if requested is None or reserve is None:
        return ()
    return (
        f"reserve {size(reserve)} >= request {size(requested)}: the memory is there but in pieces, "
        "so the allocator is changed and not the batch",
    )


def _values(situation: Situation) -> dict[str, str]:
    """The allocator's variables as the next start would see them; those that the operator uses, else the
    legacy name, which every torch reads (torch >= 2.9 reads both)."""
    present = {
        name: value
        for name in (MODERN, LEGACY)
        if (value := situation.overrides.env.get(name, situation.env.get(name))) is not None
    }
    return present or {LEGACY: ""}


def _options(value: str) -> list[str]:
    """``a:1,b:[2,3]`` -> ["a:1", "b:[2,3]"]: commas inside brackets do not part options."""
    options, depth, start = [], 0, 0
    for position, character in enumerate(value + ","):
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            options.append(value[start:position].strip())
            start = position + 1
    return [option for option in options if option]


def _switched_on(value: str) -> bool:
    return any(option.replace(" ", "").lower() == f"{OPTION}:true" for option in _options(value))


def _with_option(value: str) -> str:
    kept = [option for option in _options(value) if option.split(":")[0].strip() != OPTION]
    return ",".join([*kept, f"{OPTION}:True"])
