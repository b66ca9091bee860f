"""Incidents and the actions taken for them, as the journal keeps and the API publishes them."""

from __future__ import annotations

import enum

import msgspec

from agent.model.finding import Confidence, Evidence, Mechanism, Mode, Severity

INCIDENT_VERSION = 1


class IncidentState(str, enum.Enum):
    """``unresolved`` waits for a person: nothing safe is left to try."""

    OPEN = "open"
    ACTING = "acting"
    AWAITING_APPROVAL = "awaiting-approval"
    VERIFYING = "verifying"
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"

    @property
    def closed(self) -> bool:
        return self in (IncidentState.RESOLVED, IncidentState.UNRESOLVED)


class ActionState(str, enum.Enum):
    """The life of one action. ``proposed`` is a dry run or advice, never executed."""

    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting-approval"
    APPROVED = "approved"
    RUNNING = "running"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    FAILED = "failed"
    ROLLED_BACK = "rolled-back"
    REFUSED = "refused"
    DENIED = "denied"
    EXPIRED = "expired"
    INTERRUPTED = "interrupted"

    @property
    def final(self) -> bool:
        return self not in (
            ActionState.AWAITING_APPROVAL,
            ActionState.APPROVED,
            ActionState.RUNNING,
            ActionState.VERIFYING,
        )


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an action adds to the operator's command. ``env`` value None unsets; both empty = plain restart."""

    flags: tuple[tuple[str, str], ...] = ()
    env: dict[str, str | None] = {}
    unset_flags: tuple[str, ...] = ()


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """A typed check that proves a repair. ``kind``: serving | request-answered | metric-advanced | log-line-absent.

    ``subject`` is the metric's name or the fault class whose line must not return; ``within_seconds`` the
    deadline; ``detail`` what was seen.
    """

    kind: str
    subject: str | None = None
    within_seconds: float
    passed: bool | None = None
    detail: str | None = None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing done or proposed. Times RFC 3339 UTC."""

    id: str
    incident: str
    action: str
    change: str
    why: tuple[str, ...] = ()
    mode: Mode
    state: ActionState
    delta: Change = Change()
    precondition: str = ""
    cost: str = ""
    undo: str = ""
    actor: str = "agent"
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    expires_at: str | None = None
    proof: tuple[Proof, ...] = ()
    outcome: str | None = None

    @property
    def outcome_beyond_proof(self) -> str | None:
        """The outcome where it says more than the details of the proofs, which a display shows anyhow."""
        details = [proof.detail for proof in self.proof if proof.detail and proof.passed is not None]
        return None if self.outcome in (*details, "; ".join(details), "") else self.outcome


class Incident(msgspec.Struct, frozen=True, kw_only=True, rename={"fault": "class"}):
    """One cause and its whole life. ``fault`` is ``class`` on the wire."""

    schema_version: int = INCIDENT_VERSION
    id: str
    server: str
    fault: str
    mechanism: Mechanism | None = None
    confidence: Confidence
    severity: Severity
    state: IncidentState
    opened_at: str
    exited_at: str | None = None
    resolved_at: str | None = None
    summary: str
    evidence: tuple[Evidence, ...] = ()
    explains: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    runbook: str | None = None
    note: str | None = None
