"""From the anchors of a start to its causes: one root, its symptoms under it.

In: a :class:`Start`, the catalogue, whatever else is known (exit record, command, cards). Out: causes, most
likely first; nothing where nothing is wrong. The order of proof: certain before likely, then the deepest
process (worker before engine before API server), then the earliest line. "Engine dead" is what every fatal
cause looks like from above, so it stands alone only where no cause is in the log. A cause without its
decisive line is never certain.
"""

from __future__ import annotations

from dataclasses import replace

from agent.diagnose.candidates import (
    DEAD,
    HOST_OOM,
    INVALID,
    SERVED,
    Candidate,
    candidates_of,
    hang_rule,
    host_oom_rule,
)
from agent.diagnose.catalogue import Catalogue, Fault
from agent.diagnose.families import read_assembler, read_cache, read_occupancy, read_port, read_process
from agent.diagnose.line import ENGINE, Line
from agent.diagnose.memory import read_memory
from agent.diagnose.reading import Reading, fill
from agent.diagnose.redact import redact
from agent.diagnose.runbook import runbook_of
from agent.diagnose.settings import effective_settings
from agent.diagnose.start import HINT_LINES, Anchor, Start
from agent.model import Cause, Confidence, Context, Evidence, Exit, Finding, Mechanism, Remedy, Severity

MAX_EVIDENCE = 6
_LOUDNESS = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)


def conclude(start: Start, catalogue: Catalogue, context: Context) -> tuple[Cause, ...]:
    """The causes of this start, most likely first."""
    found = candidates_of(start)
    initiating = [c for c in found if c.signature.role == "initiating"]
    cascade = [c for c in found if c.signature.role == "cascade"]
    initiating = hang_rule(initiating, start)
    initiating = host_oom_rule(initiating, cascade, catalogue, context)
    judge = _Judge(start, catalogue, context, cascade)
    if not initiating:
        return judge.without_cause()
    return judge.with_cause(sorted(initiating, key=lambda c: c.order))


class _Judge:
    """Builds the findings. Holds what every one of them needs."""

    def __init__(self, start: Start, catalogue: Catalogue, context: Context, cascade: list[Candidate]) -> None:
        self._start = start
        self._catalogue = catalogue
        self._context = context
        self._cascade = sorted(cascade, key=lambda c: c.anchor.sequence)
        self._weak = [c for c in self._cascade if self._counts(c)]
        # A failed call to the workers is death only where something else says so: it may be one
        # administrator's request.
        self._dead = self._weak if any(c.confidence is not Confidence.POSSIBLE for c in self._weak) else []

    def _counts(self, candidate: Candidate) -> bool:
        """A symptom before the server became ready explains nothing once it did."""
        return candidate.anchor.ready or self._start.ready is None

    def with_cause(self, ordered: list[Candidate]) -> tuple[Cause, ...]:
        by_fault: dict[str, list[Candidate]] = {}
        for candidate in ordered:
            by_fault.setdefault(candidate.fault.fault, []).append(candidate)
        names = list(by_fault)
        root = names[0]
        explained = [n for n in names[1:] if n in ordered[0].fault.explains]
        if self._dead and DEAD in ordered[0].fault.explains:
            explained.append(DEAD)
        recovered = self._recovered(by_fault[root])
        causes = [self._cause(by_fault[root], tuple(dict.fromkeys(explained)), demoted=recovered)]
        rest = [n for n in names[1:] if n not in explained]
        if root == HOST_OOM and by_fault[root][0].confidence is not Confidence.CERTAIN:
            # Signal 9 without the kernel's word: both answers stay open, the broader first.
            causes[:0] = self._dead_cause(Confidence.LIKELY)
        causes += [self._cause(by_fault[name], (), demoted=True) for name in rest[:2]]
        return tuple(causes)

    def _recovered(self, mine: list[Candidate]) -> bool:
        """The server became ready after the last of these lines and nothing failed since."""
        if self._start.ready is None or self._dead or self._failed_exit():
            return False
        return all(not candidate.anchor.ready for candidate in mine)

    def _survived(self, mine: list[Candidate]) -> bool:
        """Tokens went on being made after the last of these lines: requests failed, the server did not."""
        tokens = self._start.throughput
        if self._start.ready is None or tokens is None or self._dead or self._failed_exit():
            return False
        return all(tokens[0] > candidate.anchor.last_sequence for candidate in mine)

    def _failed_exit(self) -> bool:
        record = self._context.exit
        return record is not None and not record.asked

    def without_cause(self) -> tuple[Cause, ...]:
        record = self._context.exit
        if self._dead:
            return tuple(self._dead_cause(Confidence.LIKELY))
        if self._weak and (self._start.ready is None or self._failed_exit()):
            return (self._cause(self._weak, ()),)
        if record is None or record.asked or self._start.shutdown:
            return ()
        if record.oom_kill_delta:
            return self._from_exit(HOST_OOM, record, Confidence.CERTAIN)
        if record.code == 2 and self._start.ready is None:
            return self._from_exit(INVALID, record, Confidence.LIKELY)
        return self._from_exit(DEAD, record, Confidence.LIKELY)

    def _dead_cause(self, confidence: Confidence) -> list[Cause]:
        if not self._dead:
            return []
        if any(self._is_cause(line, where) for line, where in self._start.exceptions):
            confidence = Confidence.POSSIBLE
        mine = [replace(c, confidence=confidence) for c in self._dead]
        mine.sort(key=lambda c: (-c.anchor.line.depth, c.anchor.sequence))
        return [self._cause(mine, ())]

    def _is_cause(self, line: Line, where: str) -> bool:
        """Whether an exception may be what the engine died of.

        While serving, the API server raises for single requests too: there only what the engine raises
        counts, and in a log without process names only what stands near the death.
        """
        if self._start.ready is None and not any(SERVED.search(c.anchor.line.text) for c in self._dead):
            return True
        if line.process:
            return line.depth >= ENGINE
        return any(_near(where, c.anchor.where) for c in self._dead)

    def _from_exit(self, name: str, record: Exit, confidence: Confidence) -> tuple[Cause, ...]:
        fault = self._catalogue.get(name)
        if fault is None:
            return ()
        reading = read_process((), self._context) if fault.family == "process" else Reading()
        return (self._finish(fault, confidence, fault.severity, reading, (_exit_evidence(record),), ()),)

    def _cause(self, mine: list[Candidate], explains: tuple[str, ...], *, demoted: bool = False) -> Cause:
        first = mine[0]
        reading = self._read(mine)
        severity = max((_severity(c) for c in mine), key=_LOUDNESS.index)
        if demoted:
            severity = Severity.INFO
        elif self._survived(mine):
            severity = Severity.WARNING
        confidence = Confidence.POSSIBLE if demoted and explains == () else first.confidence
        return self._finish(first.fault, confidence, severity, reading, self._evidence(mine), explains)

    def _read(self, mine: list[Candidate]) -> Reading:
        texts = [candidate.anchor.line.text for candidate in mine]
        family = mine[0].fault.family
        if family == "memory":
            settings = effective_settings(self._start, self._context)
            return read_memory(texts, mine[0].phase, self._context, self._start.pids, settings)
        if family == "cache":
            return read_cache(texts)
        if family == "occupancy":
            return read_occupancy(texts)
        if family == "assembler":
            return read_assembler(texts)
        if family == "port":
            arguments = self._start.settings.get("arguments")
            return read_port([*texts, arguments[0]] if arguments else texts, self._context)
        if family == "process":
            reading = read_process(texts, self._context)
            if mine[0].fault.fault == DEAD and self._start.exceptions:
                first = min(self._start.exceptions, key=lambda seen: -seen[0].depth)
                reading = Reading(facts=reading.facts, words={**reading.words, "exception": redact(first[0].text, 200)})
            return reading
        return Reading()

    def _evidence(self, mine: list[Candidate]) -> tuple[Evidence, ...]:
        shown: dict[str, Evidence] = {}
        for candidate in mine:
            times = f" ({candidate.anchor.count} times)" if candidate.anchor.count > 1 else ""
            text = redact(candidate.anchor.line.text, 480) + times
            shown.setdefault(candidate.anchor.line.text[:120], _log(candidate.anchor, text))
        if mine[0].fault.fault == DEAD:
            for line, where in self._start.exceptions[:2]:
                shown.setdefault(line.text[:120], Evidence(source="log", where=where, text=redact(line.text)))
        elif self._dead and mine[0].anchor is not self._dead[0].anchor:
            last = self._dead[-1].anchor
            shown.setdefault(last.line.text[:120], _log(last, redact(last.line.text)))
        evidence = list(shown.values())[:MAX_EVIDENCE]
        if self._context.exit is not None:
            evidence.append(_exit_evidence(self._context.exit))
        return tuple(evidence)

    def _finish(
        self,
        fault: Fault,
        confidence: Confidence,
        severity: Severity,
        reading: Reading,
        evidence: tuple[Evidence, ...],
        explains: tuple[str, ...],
    ) -> Cause:
        said = [item.text for item in evidence if item.source == "log"][:2]
        words = {**reading.words, **({"message": redact("; ".join(said), 300)} if said else {})}
        sentences = [text for template in fault.summary if (text := fill(template, words))]
        finding = Finding(
            fault=fault.fault,
            mechanism=reading.mechanism,
            confidence=confidence,
            severity=severity,
            summary=" ".join([*sentences, *reading.sentences]) or f"{fault.title}; the log does not say more.",
            evidence=evidence,
            explains=explains,
            remedies=_remedies(fault, reading.mechanism, words),
            runbook=runbook_of(fault),
        )
        return Cause(finding=finding, facts=reading.facts, retry=fault.retry, domain=fault.domain)


def _near(where: str, other: str) -> bool:
    """Whether two places are in one log, a traceback apart at most."""
    (source, _, line), (elsewhere, _, second) = where.rpartition(":"), other.rpartition(":")
    return source == elsewhere and abs(int(line) - int(second)) <= HINT_LINES


def _severity(candidate: Candidate) -> Severity:
    return candidate.signature.severity or candidate.fault.severity


def _log(anchor: Anchor, text: str) -> Evidence:
    return Evidence(source="log", where=anchor.where, text=text)


def _exit_evidence(record: Exit) -> Evidence:
    how = f"signal {record.signal}" if record.signal else f"exit code {record.code}"
    kills = "" if record.oom_kill_delta is None else f", oom_kill counter +{record.oom_kill_delta}"
    asked = "asked for" if record.asked else "nobody asked for it"
    reason = "" if record.reason.startswith(how) else f" ({record.reason})"
    return Evidence(
        source="exit record",
        where=f"exits.jsonl seq {record.seq}",
        text=redact(f"{how} at {record.exited_at}, {asked}{reason}{kills}"),
    )


def _remedies(fault: Fault, mechanism: Mechanism | None, words: dict[str, str]) -> tuple[Remedy, ...]:
    """The remedies whose facts are known; of several wordings of one action the first, most exact one."""
    offered: list[Remedy] = []
    for template in fault.remedies:
        if template.mechanisms and mechanism is not None and mechanism not in template.mechanisms:
            continue
        change, why = fill(template.change, words), fill(template.why, words)
        if change is None or why is None or any(r.action == template.action for r in offered):
            continue
        offered.append(Remedy(action=template.action, change=change, mode=template.mode, why=why, undo=template.undo))
    return tuple(offered)
