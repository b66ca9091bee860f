"""The one place where an incident and its actions change: every change is journalled, then told.

In: transitions asked for by the remediator. Out: a new frozen :class:`agent.model.Incident` each time, saved
in the ledger *before* the observer hears of it, so that a crash between the two loses a message and never a
fact.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from agent.journal import new_id
from agent.model import Action, ActionState, Cause, Clock, Incident, IncidentState, Mode, Proof, rfc3339
from agent.remediate.plan import Plan
from agent.remediate.ports import Ledger, Observer


class Book:
    """Holds the current version of one incident."""

    def __init__(self, incident: Incident, ledger: Ledger, clock: Clock, on_change: Observer) -> None:
        self.incident = incident
        self._ledger = ledger
        self._clock = clock
        self._on_change = on_change

    def move(self, state: IncidentState, note: str | None = None) -> Incident:
        """Set the incident's state; a closed one gets its time."""
        resolved = self._now() if state is IncidentState.RESOLVED else None
        self.incident = msgspec.structs.replace(
            self.incident,
            state=state,
            note=note if note is not None else self.incident.note,
            resolved_at=resolved,
        )
        return self._publish()

    def name(self, cause: Cause) -> Incident:
        """Put a cause into an incident that was opened on first sight and never got one."""
        finding = cause.finding
        self.incident = msgspec.structs.replace(
            self.incident,
            fault=finding.fault,
            mechanism=finding.mechanism,
            confidence=finding.confidence,
            severity=finding.severity,
            summary=finding.summary,
            evidence=finding.evidence or self.incident.evidence,
            explains=finding.explains,
            runbook=finding.runbook,
        )
        return self._publish()

    def add(self, plan: Plan, mode: Mode, state: ActionState, *, expires_after: float | None = None) -> Action:
        """A new action from a plan, in ``state``."""
        now = self._clock.now()
        action = Action(
            id=new_id("a", self._clock),
            incident=self.incident.id,
            action=plan.action,
            change=plan.change,
            why=plan.why + tuple(f"bound: {bound}" for bound in plan.bounds),
            mode=mode,
            state=state,
            delta=plan.delta,
            precondition=plan.precondition,
            cost=plan.cost,
            undo=plan.undo,
            created_at=rfc3339(now),
            expires_at=rfc3339(now + timedelta(seconds=expires_after)) if expires_after is not None else None,
            proof=plan.proofs,
        )
        self._put((*self.incident.actions, action))
        return action

    def update(
        self,
        action: Action,
        state: ActionState,
        *,
        outcome: str | None = None,
        proof: tuple[Proof, ...] | None = None,
        actor: str | None = None,
    ) -> Action:
        """Move an action on; start and end times are set by the state."""
        starts = state is ActionState.RUNNING and action.started_at is None
        changed = msgspec.structs.replace(
            action,
            state=state,
            outcome=outcome if outcome is not None else action.outcome,
            proof=proof if proof is not None else action.proof,
            actor=actor if actor is not None else action.actor,
            started_at=self._now() if starts else action.started_at,
            finished_at=self._now() if state.final else None,
        )
        self._put(tuple(changed if it.id == action.id else it for it in self.incident.actions))
        return changed

    def action(self, action_id: str) -> Action | None:
        """The current version of an action of this incident."""
        return next((it for it in self.incident.actions if it.id == action_id), None)

    def _put(self, actions: tuple[Action, ...]) -> None:
        self.incident = msgspec.structs.replace(self.incident, actions=actions)
        self._publish()

    def _publish(self) -> Incident:
        self._ledger.save_incident(self.incident)
        self._on_change(self.incident)
        return self.incident

    def _now(self) -> str:
        return rfc3339(self._clock.now())
