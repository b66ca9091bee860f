"""One start of a server as its log tells it: milestones, errors folded, the phase each error fell into.

Lines that hit a pattern come in; anchors (what may be a cause or its symptom), settings lines and the state
of the start are kept. Memory is bounded: an anchor is kept once per pattern and process, its repetitions
are counted, because one dead engine prints thousands of equal tracebacks. Nothing is judged here;
``conclude`` does that when it is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agent.diagnose.catalogue import Fault, Phase, Signature
from agent.diagnose.line import Line, parse
from agent.diagnose.scan import Slot
from agent.model import Severity

SATURATED = 300  # hits of one pattern after which lines are only counted, once it has an anchor
PATIENCE = 20_000  # the same for a pattern that only hit lines which do not count
MAX_ANCHORS = 256
MAX_TEXT = 4096
MAX_SETTINGS = 1 << 15  # the argument dump of V0 is several KiB long
MAX_PER_PATTERN = 16
MAX_EXCEPTIONS = 16
HINT_LINES = 800  # how far above an error its traceback may begin
PHASE_ORDER: tuple[Phase, ...] = ("cudagraph", "warmup", "load", "start")


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A line that means something, as soon as it is complete. ``where`` is ``source:line``.

    ``fatal``: the server cannot go on serving, so an incident may open before the process ends.
    """

    fault: str
    role: Literal["initiating", "cascade", "teardown"]
    severity: Severity
    where: str
    text: str
    fatal: bool


@dataclass
class Anchor:
    """One pattern's first line in one process, and how often it came again."""

    slot: Slot
    where: str
    sequence: int
    line: Line
    phase: Phase
    ready: bool
    after_shutdown: bool
    count: int = 1
    last_sequence: int = 0
    time: str | None = None
    last_time: str | None = None

    def candidate(self, phase: Phase) -> tuple[Fault, Signature] | None:
        """The entry this anchor speaks for in ``phase``: level and phase must agree."""
        for fault, signature in self.slot.candidates:
            if self.line.level not in signature.levels:
                continue
            if signature.phases and phase not in signature.phases:
                continue
            if fault.conditions.before_ready and self.ready:
                continue
            return fault, signature
        return None


@dataclass
class Start:
    """Everything known of one start. ``sequence`` numbers lines over all sources of the session."""

    began: bool = False
    ready: str | None = None
    ready_time: str | None = None
    time: str | None = None  # of the latest line that stated one
    shutdown: str | None = None
    ended: str | None = None
    milestone: str = ""
    progress: str | None = None
    anchors: list[Anchor] = field(default_factory=list)
    exceptions: list[tuple[Line, str]] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    frames: dict[str, dict[Phase, int]] = field(default_factory=dict)
    frame_lines: dict[Phase, tuple[Line, str]] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    throughput: tuple[int, str | None] | None = None  # sequence and time of the latest throughput line
    last_error: str | None = None
    failed: bool = False  # a cause or a symptom was seen before anybody asked for the end
    last_sequence: int = 0
    _keys: dict[tuple[int, str, str], Anchor] = field(default_factory=dict)
    _kept: dict[int, int] = field(default_factory=dict)

    def over(self) -> bool:
        """Whether a further banner can only be another start."""
        return bool(self.ready or self.shutdown or self.ended or self.failed)

    def take(self, text: str, slots: list[Slot], where: str, sequence: int) -> list[Signal]:
        """One logical line that hit ``slots``. Returns what is new in it."""
        self.last_sequence = sequence
        if not self._worth_parsing(slots):
            return []
        line = parse(text)
        self.time = line.time or self.time
        if line.pid is not None and len(self.pids) < MAX_ANCHORS:
            self.pids.add(line.pid)
        for slot in slots:
            # What a line says about the phase holds for the anchor on the same line.
            for name in slot.milestones:
                self._milestone(name, line, where, sequence)
            if slot.frames and not self.ready:
                self._frame(slot, line, where, sequence)
            if slot.watched and line.level in ("error", "none"):
                self.watched.add(slot.pattern)
        signals: list[Signal] = []
        for slot in slots:
            # Several patterns may know one line: it is still one signal.
            signal = self._anchor(slot, line, where, sequence) if slot.candidates else None
            if signal and all((s.fault, s.role) != (signal.fault, signal.role) for s in signals):
                signals.append(signal)
            if slot.exception:
                known = any(not signature.quotes for s in slots for _, signature in s.candidates)
                self._exception(line, where, anchored=known)
        return signals

    def _worth_parsing(self, slots: list[Slot]) -> bool:
        worth = False
        for slot in slots:
            count = self.counts[slot.number] = self.counts.get(slot.number, 0) + 1
            limit = PATIENCE if slot.candidates and not self._kept.get(slot.number) else SATURATED
            worth = worth or count <= limit or bool(slot.milestones)
        return worth

    def _milestone(self, name: str, line: Line, where: str, sequence: int) -> None:
        text = line.text[:MAX_SETTINGS]
        if name == "ready":
            if self.ready is None:
                self.ready, self.ready_time = where, self.time
            self.progress = None
        elif name in ("shutdown", "closing"):
            if not self.failed and self.shutdown is None:
                self.shutdown = where
        elif name == "ended":
            self.ended = where
        elif name == "throughput":
            # Zero tokens are no progress: a hung engine goes on printing them.
            if _TOKENS.search(text):
                self.throughput = (sequence, self.time)
        elif name == "banner":
            self.began = True
            self.settings.setdefault(name, (text, where))
        else:
            # The engine's own words come last and are the ones in force, but a repeated rank says nothing
            # new.
            self.settings.setdefault(name, (text, where))
        if not self.ready and name in _PROGRESS:
            self.milestone = name
            self.progress = _progress(name, text)

    def _frame(self, slot: Slot, line: Line, where: str, sequence: int) -> None:
        if line.level not in ("error", "none"):
            return
        hints = self.frames.setdefault(_process_key(line), {})
        if len(self.frames) > MAX_ANCHORS:
            self.frames.pop(next(iter(self.frames)))
        for phase in slot.frames:
            hints[phase] = sequence
            self.frame_lines.setdefault(phase, (line, where))

    def _phase(self, line: Line, sequence: int) -> Phase:
        if self.ready:
            return "serving"
        hints = self.frames.get(_process_key(line), {})
        if self.milestone == "capturing":
            # What calls the capture is named like a warm-up (compile_or_warm_up_model, initialize_cache).
            return "cudagraph"
        for phase in PHASE_ORDER:
            if phase in hints and sequence - hints[phase] <= HINT_LINES:
                return phase
        return _PHASE_AFTER.get(self.milestone, "unknown")

    def _anchor(self, slot: Slot, line: Line, where: str, sequence: int) -> Signal | None:
        phase = self._phase(line, sequence)
        key = (slot.number, line.process, line.text[:120])
        if known := self._keys.get(key):
            known.count += 1
            known.last_sequence, known.last_time = sequence, self.time
            return None
        anchor = Anchor(
            slot=slot,
            where=where,
            sequence=sequence,
            line=msgspec.structs.replace(line, text=line.text[:MAX_TEXT]),
            phase=phase,
            ready=self.ready is not None,
            after_shutdown=self.shutdown is not None and not self.failed,
            last_sequence=sequence,
            time=self.time,
            last_time=self.time,
        )
        chosen = anchor.candidate(phase)
        if chosen is None and all(line.level not in s.levels for _, s in slot.candidates):
            return None
        kept = self._kept.get(slot.number, 0)
        if kept >= MAX_PER_PATTERN or len(self.anchors) >= MAX_ANCHORS:
            return None
        self._kept[slot.number] = kept + 1
        self._keys[key] = anchor
        self.anchors.append(anchor)
        if chosen is None or anchor.after_shutdown:
            return None
        fault, signature = chosen
        if signature.role != "teardown" and signature.settled:
            self.last_error = line.text[:MAX_TEXT]
            self.failed = True
        return Signal(
            fault=fault.fault,
            # A guess never leads: whoever opens an incident on the first initiating line would name it.
            role=signature.role if signature.settled else "cascade",
            severity=signature.severity or fault.severity,
            where=where,
            text=line.text[:MAX_TEXT],
            fatal=signature.fatal,
        )

    def _exception(self, line: Line, where: str, *, anchored: bool) -> None:
        if line.level not in ("error", "none") or not _RAISED.match(line.text.strip()):
            return
        self.last_error = line.text[:MAX_TEXT]
        if anchored or self.shutdown:
            return
        if len(self.exceptions) >= MAX_EXCEPTIONS:
            # The first ones stay; of the later the shallowest goes: single requests fail all day.
            later = range(MAX_EXCEPTIONS // 2, MAX_EXCEPTIONS)
            self.exceptions.pop(min(later, key=lambda index: self.exceptions[index][0].depth))
        self.exceptions.append((msgspec.structs.replace(line, text=line.text[:MAX_TEXT]), where))


_RAISED = re.compile(r"""(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$|\(['"])""")
_TOKENS = re.compile(r"throughput: (?:[1-9]|0\.[1-9])")
_PROGRESS = frozenset(("banner", "loading", "loaded", "compiling", "pool", "pool-size", "capturing", "captured"))
# What is under way once this line was printed (vllm/v1/worker/gpu_worker.py: load, profile, allocate,
# capture).
_PHASE_AFTER: dict[str, Phase] = {
    "loading": "load",
    "loaded": "warmup",
    "compiling": "warmup",
    "pool": "warmup",
    "pool-size": "warmup",
    "capturing": "cudagraph",
    "captured": "cudagraph",
}
_SHARDS = re.compile(r"checkpoint shards: +(\d+)%")
_GRAPHS = re.compile(r"(\d+)/(\d+) \[")


def _process_key(line: Line) -> str:
    return f"{line.process}/{line.pid}"


def _progress(name: str, text: str) -> str:
    if name == "loading":
        found = _SHARDS.findall(text)
        return f"loading weights {found[-1]} %" if found else "loading weights"
    if name == "capturing":
        graphs = _GRAPHS.findall(text)
        return f"capturing graphs {graphs[-1][0]}/{graphs[-1][1]}" if graphs else "capturing graphs"
    return _WORDS.get(name, name)


_WORDS = {
    "banner": "starting",
    "loaded": "profiling memory",
    "compiling": "compiling",
    "pool": "allocating the KV cache",
    "pool-size": "warming up",
    "captured": "warming up",
}
