"""Small pure pieces about a server's end: what to say at first sight, and what when no cause can be named."""

from __future__ import annotations

from collections.abc import Sequence

from agent.diagnose import Signal
from agent.model import (
    Cause,
    Clock,
    Confidence,
    Domain,
    Evidence,
    Exit,
    Finding,
    Incident,
    ProcessFacts,
    Retry,
    Severity,
    parse_rfc3339,
)


class Silence:
    """Counts the time since something after which something else should have followed (a fatal line, an exit)."""

    def __init__(self, clock: Clock, grace_seconds: float) -> None:
        self._clock = clock
        self._grace = grace_seconds
        self._since: float | None = None

    def begin(self) -> None:
        self._since = self._clock.monotonic()

    def clear(self) -> None:
        self._since = None

    @property
    def begun(self) -> bool:
        return self._since is not None

    def over(self) -> bool:
        """True when the grace has passed."""
        return self._since is not None and self._clock.monotonic() - self._since >= self._grace


def exit_words(record: Exit | None) -> str:
    """How it ended, in words: vLLM exits 0 when its engine dies (vllm#48966), so 0 is said to be a failure."""
    if record is None:
        return "the server no longer answers"
    if record.signal is not None:
        return f"the server was ended by signal {record.signal}"
    if record.code == 0:
        return "the server exited 0 although nobody asked it to"
    return f"the server exited with code {record.code}"


def first_sight(record: Exit | None, signals: Sequence[Signal]) -> tuple[str, str, tuple[Evidence, ...]]:
    """Class, summary and evidence of an incident before the log was read to its end."""
    initiating = next((one for one in signals if one.role == "initiating"), None)
    fault = initiating.fault if initiating is not None else "engine-dead"
    evidence = [_exit_evidence(record)]
    if initiating is not None:
        evidence.append(Evidence(source="log", where=initiating.where, text=initiating.text))
    return fault, f"{exit_words(record)}; the log is being read", tuple(evidence)


def dead_engine(reason: str) -> tuple[str, str, Evidence]:
    """Class, summary and evidence where /health alone says that the engine is dead."""
    seen = Evidence(source="health", where="/health", text=reason)
    return "engine-dead", "the engine is dead and the server's process stays; the log is being read", seen


def opening_delay(record: Exit, incident: Incident | None) -> float:
    """Seconds from the exit to the opened incident; 0 where a fatal line had opened it before the exit."""
    if incident is None:
        return 0.0
    delay = parse_rfc3339(incident.opened_at) - parse_rfc3339(record.exited_at)
    return max(0.0, delay.total_seconds())


def fallback_cause(record: Exit | None) -> Cause:
    """When the log names nothing: the end itself, with a plain restart as the only remedy."""
    finding = Finding(
        fault="engine-dead",
        confidence=Confidence.POSSIBLE,
        severity=Severity.CRITICAL,
        summary=f"{exit_words(record)}, and its log names no cause",
        evidence=(_exit_evidence(record),),
    )
    facts = ProcessFacts(exit_code=record.code, signal=record.signal) if record is not None else None
    return Cause(finding=finding, facts=facts, retry=Retry.MAY, domain=Domain.UNKNOWN)


def _exit_evidence(record: Exit | None) -> Evidence:
    if record is None:
        return Evidence(source="health", where="/health", text="no connection")
    text = f"code {record.code}, signal {record.signal}, asked: {'yes' if record.asked else 'no'}"
    return Evidence(source="exit record", where=f"exits.jsonl seq {record.seq}", text=text)
