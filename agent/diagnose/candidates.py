"""Anchors read as faults, and the rules that a table of patterns cannot hold.

In: a :class:`Start` and what is known beside the log. Out: candidates, each one anchor under one entry with a
confidence. A guess gives way to a named exception, a message that slow compilation prints too is no hang while
something moves, and signal 9 is decided by the kernel's counter. Which candidate is the cause is left to
``conclude``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agent.diagnose.catalogue import Catalogue, Fault, Phase, Signature
from agent.diagnose.start import PHASE_ORDER, Anchor, Start
from agent.model import Confidence, Context

DEAD, HANG, HOST_OOM, INVALID = "engine-dead", "engine-hang", "host-oom-kill", "config-invalid"
RANK = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}
# What only a server that was already serving, or was still starting, prints.
SERVED = re.compile(
    r"output_handler failed|encountered a fatal error|Error in \w+ stream|[Ee]ngine loop is not running"
    r"|[Bb]ackground (?:loop|task)|AsyncEngineDeadError|chat[_ ]?completion"
)
_STARTING = re.compile(r"failed to start|initialization failed|failed to initialize", re.IGNORECASE)


@dataclass(frozen=True)
class Candidate:
    """An anchor read as one fault."""

    fault: Fault
    signature: Signature
    anchor: Anchor
    phase: Phase
    confidence: Confidence

    @property
    def order(self) -> tuple[int, int, int]:
        return RANK[self.confidence], -self.anchor.line.depth, self.anchor.sequence


def candidates_of(start: Start) -> list[Candidate]:
    """What each anchor of one start points to; anchors after an asked shutdown point to nothing."""
    found: list[Candidate] = []
    fallback = _fallback_phase(start)
    for anchor in start.anchors:
        if anchor.after_shutdown:
            continue
        phase = fallback if anchor.phase == "unknown" else anchor.phase
        chosen = anchor.candidate(phase)
        if chosen is None:
            continue
        fault, signature = chosen
        confidence = signature.confidence
        if not _agrees(fault, signature, start):
            continue
        if anchor.phase == "unknown" and signature.phases and confidence is Confidence.CERTAIN:
            confidence = Confidence.LIKELY if phase != "unknown" else Confidence.POSSIBLE
        found.append(Candidate(fault, signature, anchor, phase, confidence))
    return found


def _agrees(fault: Fault, signature: Signature, start: Start) -> bool:
    """Whether the rest of the log lets the line count."""
    if signature.confidence is not Confidence.CERTAIN and start.watched.intersection(fault.conditions.unless):
        return False
    if signature.needs and not start.watched.intersection(signature.needs):
        return False
    if start.watched.intersection(signature.unless):
        return False
    # A traceback that merely passes through a place is a guess; any named exception is better.
    return not (signature.traceback and start.exceptions)


def _fallback_phase(start: Start) -> Phase:
    """The phase of errors that came without one: by what was printed about the same death."""
    if start.ready:
        return "serving"
    texts = [anchor.line.text for anchor in start.anchors]
    if any(SERVED.search(text) for text in texts) or start.throughput:
        return "serving"
    # Another process's traceback of the same failure may say where all of them were.
    for phase in PHASE_ORDER:
        if phase in start.frame_lines:
            return phase
    return "warmup" if any(_STARTING.search(text) for text in texts) else "unknown"


def hang_rule(found: list[Candidate], start: Start) -> list[Candidate]:
    """The broadcast message alone: a compile prints it too, and what went on afterwards was no hang."""
    kept: list[Candidate] = []
    for candidate in found:
        guess = candidate.fault.fault == HANG and candidate.signature.confidence is Confidence.POSSIBLE
        if guess and start.throughput and start.throughput[0] > candidate.anchor.last_sequence:
            continue
        if guess and start.ready and not candidate.anchor.ready:
            continue
        if guess and not start.ready and start.milestone in ("banner", "loading", "loaded", "compiling", "capturing"):
            continue
        silent = candidate.signature.severity is not None  # the broadcast message, not the watchdog's
        if guess and silent and (candidate.anchor.ready or _repeated(found)):
            candidate = replace(candidate, confidence=Confidence.LIKELY)
        kept.append(candidate)
    return kept


def _repeated(found: list[Candidate]) -> bool:
    return sum(c.anchor.count for c in found if c.fault.fault == HANG) > 1


def host_oom_rule(
    found: list[Candidate], cascade: list[Candidate], catalogue: Catalogue, context: Context
) -> list[Candidate]:
    """A worker that ended by signal 9 proves nothing; the kernel's counter decides, both ways."""
    kills = context.exit.oom_kill_delta if context.exit else None
    if kills is None:
        return found
    if kills == 0:
        return [c for c in found if c.fault.fault != HOST_OOM or c.confidence is Confidence.CERTAIN]
    mine = [c for c in found if c.fault.fault == HOST_OOM]
    others = [c for c in found if c.fault.fault != HOST_OOM]
    if mine:
        return [replace(c, confidence=Confidence.CERTAIN) for c in mine] + others
    fault = catalogue.get(HOST_OOM)
    if fault is None or not cascade or any(c.confidence is Confidence.CERTAIN for c in others):
        return found
    first = min(cascade, key=lambda c: c.order)
    return [Candidate(fault, fault.signatures[0], first.anchor, first.phase, Confidence.CERTAIN), *others]
