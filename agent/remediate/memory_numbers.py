"""The out-of-memory line as arithmetic lines, the same for every memory family.

In: :class:`agent.model.MemoryFacts` and :class:`agent.model.OccupancyFacts`. Out: sentences, and the few
derived numbers that families share (which card, how much it has). Numbers that were not stated stay None.
"""

from __future__ import annotations

from agent.model import Cause, GpuReading, MemoryFacts, OccupancyFacts
from agent.remediate.quantities import size
from agent.remediate.situation import Situation

OOM_FAULTS = frozenset({"oom-load", "oom-warmup", "oom-cudagraph", "oom-serving"})


def memory(cause: Cause) -> MemoryFacts:
    """The numbers of the out-of-memory line; all None where the cause carries none."""
    return cause.facts if isinstance(cause.facts, MemoryFacts) else MemoryFacts()


def occupancy(cause: Cause) -> OccupancyFacts:
    """The numbers of "Free memory on device…"; all None where the cause carries none."""
    return cause.facts if isinstance(cause.facts, OccupancyFacts) else OccupancyFacts()


def stated(facts: MemoryFacts) -> tuple[str, ...]:
    """The message's numbers in one line, or none when it had none."""
    parts = [
        f"{label} {size(value)}"
        for label, value in (
            ("requested", facts.requested_bytes),
            ("free", facts.free_bytes),
            ("reserved by PyTorch but unallocated", facts.reserved_unallocated_bytes),
            ("in use by this process", facts.process_bytes),
            ("card", facts.total_bytes),
        )
        if value is not None
    ]
    where = f"GPU {facts.gpu}: " if facts.gpu is not None else ""
    return (where + ", ".join(parts) + " (the out-of-memory line)",) if parts else ()


def card_index(cause: Cause) -> int | None:
    """Which of the server's cards the fault names."""
    gpu = memory(cause).gpu
    if gpu is not None:
        return gpu
    digits = "".join(character for character in occupancy(cause).device or "" if character.isdigit())
    return int(digits) if digits else None


def card(cause: Cause, situation: Situation) -> GpuReading | None:
    """The reading of the card that the fault names; the only one when there is one; None = not measured."""
    cards = situation.gpus or ()
    index = card_index(cause)
    if len(cards) == 1:
        return cards[0]
    return cards[index] if index is not None and index < len(cards) else None


def total_bytes(cause: Cause, situation: Situation) -> int | None:
    """The card's size: as the process saw it, else as the driver says (which is a little more)."""
    reading = card(cause, situation)
    return memory(cause).total_bytes or occupancy(cause).total_bytes or (reading.total_bytes if reading else None)


def on_cpu(situation: Situation) -> str | None:
    """Why this is vLLM's CPU build, where the flags of the GPU's memory have no effect; None = it is not."""
    for text in (situation.vllm_version, situation.settings.vllm_version):
        if text is not None and "+cpu" in text:
            return f"vLLM {text} is the CPU build"
    return None
