"""The page ``docs/faults.md``: ``python -m tests.documentation.faults_page > docs/faults.md``.

In: the fault catalogue, the table of actions, and the planner itself, asked about each class and mechanism with the
default modes. Out: Markdown. So the page says what the planner does, not what somebody remembers of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from agent.config import ACTIONS, default_modes
from agent.diagnose import Fault, load_catalogue
from agent.model import (
    AssemblerFacts,
    CacheFacts,
    Cause,
    Confidence,
    EffectiveSettings,
    Facts,
    Finding,
    GpuProcess,
    GpuReading,
    Mechanism,
    MemoryFacts,
    MemoryHolder,
    Mode,
    OccupancyFacts,
    Setting,
)
from agent.remediate import AssemblerCandidate, Plan, Situation, plan

GIB = 1 << 30
PUBLISHED = {policy.name for policy in ACTIONS}
HEAD = """\
# Fault classes

One file a class in `rules/faults`: its signatures with their sources, what it explains, its remedies. `agent diagnose`
prints the class and its remedies; the watcher opens one incident per cause. Words: [glossary](glossary.md).

**Tried by the agent** is what the planner offers, in order, with the [default modes](actions.md) and where its
preconditions hold: the numbers are known, a launcher owns the server, and flags can be appended. A plain `restart`
comes last. **Left to a person** is printed as advice and never done.

| class | what it means | severity | domain | retry outlook |
| --- | --- | --- | --- | --- |
"""
MECHANISMS = """
## Mechanisms

Why GPU memory ran out, decided by the numbers of the message and the card, never by the message's own hint. Where the
numbers are missing the mechanism is unknown (null).

| mechanism | what the numbers say |
| --- | --- |
| `fragmentation` | what PyTorch has reserved but not allocated covers the request that failed |
| `neighbour` | another process holds memory of the card |
| `orphan` | a left-over process of the dead server holds memory of the card |
| `batch` | neither: while serving or warming up, the activations of the batch did not fit beside weights and KV pool |
| `full` | neither: weights and pool fill the card before anything is served |
"""


def _known(value: int | float | bool) -> Setting:
    return Setting(value=value, source="log line 7")


def _memory(mechanism: Mechanism | None) -> MemoryFacts:
    """Out of memory on a card of 80 GiB, with the numbers that the mechanism is about."""
    foreign = mechanism in (Mechanism.NEIGHBOUR, Mechanism.ORPHAN)
    return MemoryFacts(
        gpu=0,
        requested_bytes=GIB,
        total_bytes=80 * GIB,
        free_bytes=GIB // 2,
        process_bytes=(39 if foreign else 79) * GIB,
        allocated_bytes=(38 if foreign else 70) * GIB,
        reserved_unallocated_bytes=2 * GIB if mechanism is Mechanism.FRAGMENTATION else GIB // 10,
        neighbours=(MemoryHolder(pid=1, used_bytes=40 * GIB),) if foreign else (),
    )


def _facts(fault: Fault, mechanism: Mechanism | None) -> Facts | None:
    return {
        "memory": _memory(mechanism),
        "occupancy": OccupancyFacts(
            device="cuda:0", free_bytes=70 * GIB, total_bytes=80 * GIB, utilization=0.9, requested_bytes=72 * GIB
        ),
        "cache": CacheFacts(
            max_model_len=32768, needed_bytes=4 * GIB, available_bytes=GIB, estimated_max_model_len=8192
        ),
        "assembler": AssemblerFacts(arch="sm_90a", path="/usr/bin/ptxas"),
    }.get(fault.family)


def _situation(fault: Fault, facts: Facts | None, mechanism: Mechanism | None) -> Situation:
    foreign = mechanism in (Mechanism.NEIGHBOUR, Mechanism.ORPHAN)
    free = 40 if foreign else 70 if isinstance(facts, OccupancyFacts) else 79
    card = GpuReading(
        index=0,
        uuid="GPU-0",
        name="card",
        total_bytes=80 * GIB,
        used_bytes=(80 - free) * GIB,
        free_bytes=free * GIB,
        processes=(GpuProcess(pid=1, used_bytes=(80 - free) * GIB),) if free < 79 else (),
    )
    settings = EffectiveSettings(
        vllm_version="0.32.0",
        max_num_seqs=_known(256),
        max_num_batched_tokens=_known(8192),
        max_model_len=_known(32768),
        gpu_memory_utilization=_known(0.9),
        kv_pool_bytes=None if fault.fault == "kv-cache-none" else _known(40 * GIB),
        kv_pool_tokens=_known(327680),
        chunked_prefill=_known(True),
    )
    return Situation(
        settings=settings,
        gpus=(card,),
        modes=default_modes(),
        vllm_version="0.32.0",
        triton_version="3.6.0",
        start_failed=fault.fault not in ("oom-serving", "engine-dead", "engine-hang", "host-oom-kill"),
        assemblers=(AssemblerCandidate(path="/usr/local/cuda/bin/ptxas", root_owned=True, assembles=True),),
    )


def tried(fault: Fault, mechanism: Mechanism | None) -> tuple[Plan, ...]:
    """What the planner offers for a cause of this class and mechanism."""
    facts = _facts(fault, mechanism)
    finding = Finding(
        fault=fault.fault,
        mechanism=mechanism,
        confidence=Confidence.CERTAIN,
        severity=fault.severity,
        summary=fault.title,
    )
    cause = Cause(finding=finding, facts=facts, retry=fault.retry, domain=fault.domain)
    return plan(cause, _situation(fault, facts, mechanism))


def mechanisms_of(fault: Fault) -> tuple[Mechanism | None, ...]:
    """The mechanisms that this class can have; None where it has none."""
    if fault.family != "memory":
        return (None,)
    named = {one for remedy in fault.remedies for one in remedy.mechanisms}
    return tuple(one for one in Mechanism if one in named)


def page() -> str:
    """The text of ``docs/faults.md``."""
    faults = load_catalogue().faults
    rows = [
        f"| [`{it.fault}`](#{it.fault}) | {it.title} | {it.severity.value} | {it.domain.value} | {it.retry.value} |\n"
        for it in faults
    ]
    return HEAD + "".join(rows) + MECHANISMS + "".join(line for it in faults for line in _section(it))


def _section(fault: Fault) -> Iterator[str]:
    yield f"\n## {fault.fault}\n\n{fault.title}."
    if fault.explains:
        yield f" Explains: {', '.join(f'`{name}`' for name in fault.explains)}."
    yield "\n\n"
    if fault.family == "memory":
        yield "| mechanism | tried by the agent |\n| --- | --- |\n"
        for mechanism in mechanisms_of(fault):
            yield f"| `{mechanism.value if mechanism else 'unknown'}` | {_words(tried(fault, mechanism))} |\n"
    else:
        yield f"Tried by the agent: {_words(tried(fault, None))}.\n"
    left = dict.fromkeys(it.change for it in fault.remedies if it.action not in PUBLISHED)
    if left:
        yield "\nLeft to a person:\n\n" + "".join(f"- {_plain(change)}\n" for change in left)


def _words(plans: tuple[Plan, ...]) -> str:
    names = dict.fromkeys((it.action, it.mode) for it in plans if it.mode is not Mode.OFF)
    return ", then ".join(f"`{action}` ({mode.value})" for action, mode in names) or "nothing"


def _plain(change: str) -> str:
    return change.replace("{port}", "PORT").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
