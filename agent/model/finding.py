"""The diagnosis as it is published (``agent schema diagnosis``), and the cause as the agent uses it."""

from __future__ import annotations

import enum

import msgspec

from agent.model.facts import Facts

DIAGNOSIS_VERSION = 1


class Severity(str, enum.Enum):
    """``critical`` pages, ``warning`` is a ticket, ``info`` is neither."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Confidence(str, enum.Enum):
    """How sure a finding is. A finding whose decisive line is missing is never ``certain``."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Mechanism(str, enum.Enum):
    """Why memory ran out, decided by numbers and never by the message's own hint."""

    FRAGMENTATION = "fragmentation"
    NEIGHBOUR = "neighbour"
    ORPHAN = "orphan"
    BATCH = "batch"
    FULL = "full"


class Mode(str, enum.Enum):
    """How an action may be taken. ``off`` does not even propose it."""

    OFF = "off"
    DRY_RUN = "dry-run"
    APPROVE = "approve"
    AUTO = "auto"


class Retry(str, enum.Enum):
    """Whether a plain restart may help."""

    MAY = "may"
    NEEDS_CHANGE = "needs-change"
    UNKNOWN = "unknown"


class Domain(str, enum.Enum):
    """Where the fault lives."""

    WORKLOAD = "workload"
    CONFIGURATION = "configuration"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class Verdict(str, enum.Enum):
    """The highest severity above info, else healthy; unknown where nothing decisive was seen."""

    HEALTHY = "healthy"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was seen. ``where`` is ``file:line`` or a query; ``text`` is redacted and bounded."""

    source: str
    where: str
    text: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What would repair it: the change, why, and how to undo it."""

    action: str
    change: str
    mode: Mode
    why: str
    undo: str


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename={"fault": "class"}, omit_defaults=False):
    """One cause. ``fault`` (``class`` on the wire) is a name of the taxonomy."""

    fault: str
    mechanism: Mechanism | None = None
    confidence: Confidence
    severity: Severity
    summary: str
    evidence: tuple[Evidence, ...] = ()
    explains: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    runbook: str | None = None


class NotMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A check that could not be made, and why. Never shown as ok."""

    check: str
    reason: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The published answer of ``agent diagnose``, most likely cause first."""

    schema_version: int = DIAGNOSIS_VERSION
    verdict: Verdict
    target: str
    window_seconds: float | None
    findings: tuple[Finding, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with what remediation needs and the publication does not."""

    finding: Finding
    facts: Facts | None = None
    retry: Retry = Retry.UNKNOWN
    domain: Domain = Domain.UNKNOWN
