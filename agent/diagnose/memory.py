"""GPU memory ran out: the numbers of the allocator's message, and the mechanism that they prove.

In: the texts of the out-of-memory lines, the phase, what is known of the card. Out: :class:`MemoryFacts`,
the mechanism and its arithmetic. The message's own hint ("try expandable_segments") is printed whatever the
cause and is not believed; only the numbers decide, and where they are missing the mechanism is unknown.
Texts: c10/cuda/CUDACachingAllocator.cpp of torch 1.13 to 2.14 (CUDA and HIP).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from agent.diagnose.catalogue import Phase
from agent.diagnose.reading import SIZE, Reading, first_size, size, to_bytes
from agent.model import Context, EffectiveSettings, Mechanism, MemoryFacts, MemoryHolder

GIB = 1 << 30
# A reserve below this is the allocator's ordinary slack (0.25 to 0.31 GiB on cards that were simply full,
# 1.76 GiB where expandable segments cured it).
FRAGMENT_FLOOR_BYTES = 512 << 20
FRAGMENT_FLOOR_SHARE = 0.01
NEIGHBOUR_FLOOR_BYTES = GIB
NEIGHBOUR_FLOOR_SHARE = 0.02
# What no process is named for must be larger before it is called a neighbour: contexts and drivers hold some.
UNNAMED_FLOOR_BYTES = 2 * GIB
UNNAMED_FLOOR_SHARE = 0.05

_PROCESS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
_OLD = re.compile(
    rf"GPU (\d+); {SIZE} total capacity; {SIZE} already allocated; {SIZE} free; "
    rf"{SIZE} reserved in total by PyTorch"
)
_GPU = re.compile(r"GPU (\d+) has a total capac")
_DUMMIES = re.compile(r"with (\d+) dummy requests")


def read_memory(
    texts: Sequence[str],
    phase: Phase,
    context: Context,
    own_pids: Iterable[int],
    settings: EffectiveSettings,
) -> Reading:
    """Numbers of the first message that states them, then mechanism, words and arithmetic."""
    text = next((t for t in texts if "Tried to allocate" in t and "in use" in t), None)
    text = text or next((t for t in texts if "Tried to allocate" in t), texts[0] if texts else "")
    facts = parse_memory(text, frozenset(own_pids))
    facts = _with_names(facts, context)
    batch = phase == "serving" or any("warming up" in t for t in texts)
    mechanism = mechanism_of(facts, serving=batch, own_pids=frozenset(own_pids))
    words = _words(facts)
    if found := next((m for t in texts if (m := _DUMMIES.search(t))), None):
        words["dummy_requests"] = found.group(1)
    words.update(_batch_words(settings))
    return Reading(facts=facts, words=words, mechanism=mechanism, sentences=_arithmetic(facts, mechanism))


def parse_memory(text: str, own_pids: frozenset[int] = frozenset()) -> MemoryFacts:
    """The numbers of one message. Missing ones are None, never zero."""
    if old := _OLD.search(text):
        return _parse_old(text, old)
    gpu = _GPU.search(text)
    allocated = first_size(rf"Of the allocated memory {SIZE} is allocated by PyTorch", text)
    reserved = first_size(rf"(?:and|,) {SIZE} is reserved by PyTorch but unallocated", text)
    process = first_size(rf"this process has {SIZE} memory in use", text)
    holders = [
        MemoryHolder(pid=int(pid), used_bytes=to_bytes(number, unit) or 0)
        for pid, number, unit in _PROCESS.findall(text)
    ]
    if process is None:
        process, holders = _own_among(holders, allocated, reserved)
    return MemoryFacts(
        gpu=int(gpu.group(1)) if gpu else None,
        requested_bytes=first_size(rf"Tried to allocate {SIZE}", text),
        total_bytes=first_size(rf"total capac\w* of {SIZE}", text),
        free_bytes=first_size(rf"of which {SIZE} is free", text),
        process_bytes=process,
        allocated_bytes=allocated,
        reserved_unallocated_bytes=reserved,
        neighbours=tuple(holder for holder in holders if holder.pid not in own_pids),
    )


def _parse_old(text: str, old: re.Match[str]) -> MemoryFacts:
    """torch up to 2.0: no processes are named, and reserved includes allocated."""
    total, allocated, free, reserved = (to_bytes(old.group(n), old.group(n + 1)) for n in (2, 4, 6, 8))
    unallocated = reserved - allocated if reserved is not None and allocated is not None else None
    return MemoryFacts(
        gpu=int(old.group(1)),
        requested_bytes=first_size(rf"Tried to allocate {SIZE}", text),
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        reserved_unallocated_bytes=unallocated,
    )


def _own_among(
    holders: list[MemoryHolder], allocated: int | None, reserved: int | None
) -> tuple[int | None, list[MemoryHolder]]:
    """In a container torch does not know its own pid on the host and lists itself as "Process N": the
    holder that is just large enough for what torch has."""
    if allocated is None:
        return None, holders
    needed = allocated + (reserved or 0)
    fitting = [holder for holder in holders if holder.used_bytes >= needed - (16 << 20)]
    if not fitting:
        return None, holders
    own = min(fitting, key=lambda holder: holder.used_bytes)
    return own.used_bytes, [holder for holder in holders if holder is not own]


def _with_names(facts: MemoryFacts, context: Context) -> MemoryFacts:
    names = {process.pid: process.name for card in context.gpus or () for process in card.processes}
    if not names or not facts.neighbours:
        return facts
    named = tuple(
        MemoryHolder(pid=h.pid, used_bytes=h.used_bytes, name=names.get(h.pid) or h.name) for h in facts.neighbours
    )
    import msgspec

    return msgspec.structs.replace(facts, neighbours=named)


def mechanism_of(facts: MemoryFacts, *, serving: bool, own_pids: frozenset[int] = frozenset()) -> Mechanism | None:
    """Why memory ran out, or None where the numbers do not say.

    A neighbour comes first where it holds more than the allocator's slack and, with its memory, the request
    had fitted.
    """
    if facts.requested_bytes is None or facts.total_bytes is None or facts.free_bytes is None:
        return None
    foreign = foreign_bytes(facts)
    slack = facts.reserved_unallocated_bytes
    if foreign is not None and foreign >= (slack or 0) and facts.free_bytes + foreign >= facts.requested_bytes:
        return Mechanism.ORPHAN if any(_orphan(h, own_pids) for h in facts.neighbours) else Mechanism.NEIGHBOUR
    if slack is None:
        return None
    floor = max(FRAGMENT_FLOOR_BYTES, FRAGMENT_FLOOR_SHARE * facts.total_bytes)
    if slack >= facts.requested_bytes and slack >= floor:
        return Mechanism.FRAGMENTATION
    if facts.process_bytes is None and facts.allocated_bytes is None:
        return None
    return Mechanism.BATCH if serving else Mechanism.FULL


def _orphan(holder: MemoryHolder, own_pids: frozenset[int]) -> bool:
    return bool(holder.name and holder.name.startswith("VLLM::") and holder.pid not in own_pids)


def foreign_bytes(facts: MemoryFacts) -> int | None:
    """Bytes that others hold, None where they are too few to matter or not stated."""
    if facts.total_bytes is None:
        return None
    named = sum(holder.used_bytes for holder in facts.neighbours)
    if named >= max(NEIGHBOUR_FLOOR_BYTES, NEIGHBOUR_FLOOR_SHARE * facts.total_bytes):
        return named
    if facts.process_bytes is None or facts.free_bytes is None:
        return None
    unnamed = facts.total_bytes - facts.free_bytes - facts.process_bytes
    large = unnamed >= max(UNNAMED_FLOOR_BYTES, UNNAMED_FLOOR_SHARE * facts.total_bytes)
    return unnamed if large else None


def _words(facts: MemoryFacts) -> dict[str, str]:
    numbers = {
        "requested": facts.requested_bytes,
        "total": facts.total_bytes,
        "free": facts.free_bytes,
        "process": facts.process_bytes,
        "allocated": facts.allocated_bytes,
        "reserved": facts.reserved_unallocated_bytes,
        "others": foreign_bytes(facts),
    }
    words = {name: size(value) for name, value in numbers.items() if value is not None}
    if facts.gpu is not None:
        words["gpu"] = str(facts.gpu)
    if facts.neighbours:
        largest = max(facts.neighbours, key=lambda holder: holder.used_bytes)
        words["neighbour_pid"] = str(largest.pid)
        words["neighbour_bytes"] = size(largest.used_bytes)
        words["neighbour_name"] = largest.name or "unknown name"
    if facts.total_bytes and facts.free_bytes is not None and facts.process_bytes is not None:
        share = (facts.free_bytes + facts.process_bytes) / facts.total_bytes
        if share > 0.06:
            # One hundredth less: the next start has a CUDA context beside what PyTorch counts.
            words["fitting_utilization"] = f"{math.floor((share - 0.01) * 100) / 100:.2f}"
    return words


def _batch_words(settings: EffectiveSettings) -> dict[str, str]:
    """The present batch and its half, where the settings are known; floors of 1 sequence and 512 tokens."""
    words: dict[str, str] = {}
    for name, setting, floor in (
        ("tokens", settings.max_num_batched_tokens, 512),
        ("sequences", settings.max_num_seqs, 1),
    ):
        if setting is not None and isinstance(setting.value, int):
            words[name] = str(setting.value)
            words[f"half_{name}"] = str(max(floor, setting.value // 2))
    return words


def _arithmetic(facts: MemoryFacts, mechanism: Mechanism | None) -> tuple[str, ...]:
    words = _words(facts)
    if mechanism in (Mechanism.NEIGHBOUR, Mechanism.ORPHAN):
        return _neighbour_words(facts, mechanism)
    if mechanism is Mechanism.FRAGMENTATION:
        return (
            f"Fragmentation: {words['reserved']} reserved but unallocated >= {words['requested']} requested, "
            "so the memory is there but in pieces.",
        )
    if mechanism is Mechanism.BATCH:
        return (
            f"No neighbour and no fragmentation ({words['reserved']} reserved but unallocated against "
            f"{words['requested']} requested): the activations of the batch did not fit beside weights and "
            "KV pool.",
        )
    if mechanism is Mechanism.FULL:
        return (
            f"No neighbour and no fragmentation ({words['reserved']} reserved but unallocated against "
            f"{words['requested']} requested): weights and pool fill the card.",
        )
    return ("The numbers needed to tell fragmentation, neighbour and batch apart are not in the log.",)


def _neighbour_words(facts: MemoryFacts, mechanism: Mechanism) -> tuple[str, ...]:
    assert facts.free_bytes is not None and facts.requested_bytes is not None and facts.total_bytes is not None
    foreign = foreign_bytes(facts) or 0
    if facts.neighbours:
        who = ", ".join(
            f"process {h.pid}{f' ({h.name})' if h.name else ''} holds {size(h.used_bytes)}" for h in facts.neighbours
        )
    else:
        who = f"{size(foreign)} belong to no process that the log names"
    label = "Orphan" if mechanism is Mechanism.ORPHAN else "Neighbour"
    return (
        f"{label}: {who} of the card's {size(facts.total_bytes)}; with that memory free, "
        f"{size(facts.free_bytes + foreign)} would have been there for the "
        f"{size(facts.requested_bytes)} asked for.",
    )
