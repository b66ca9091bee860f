"""The incidents of one server: opened once per cause, kept current, closed, and told on.

In: causes and the remediator's updates. Out: every change saved to the journal first, then published (notifiers,
metrics, terminal). At most one incident per server is open; a death while one is open belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agent.journal import Journal, new_id
from agent.model import Cause, Clock, Confidence, Evidence, Incident, IncidentState, Severity, rfc3339


class IncidentKeeper:
    """Keeps the open incident of one server. ``publish`` must not block and must not raise."""

    def __init__(self, server: str, journal: Journal, clock: Clock, publish: Callable[[Incident], None]) -> None:
        self._server = server
        self._journal = journal
        self._clock = clock
        self._publish = publish
        self.active: Incident | None = None

    def restore(self) -> Incident | None:
        """The incident that a previous life of the agent left open, if any; it is published anew."""
        mine = [one for one in self._journal.open_incidents() if one.server == self._server]
        newest = max(mine, key=lambda one: one.opened_at, default=None)
        for one in mine:
            if one is not newest:
                self.close(one, IncidentState.UNRESOLVED, "left open by a previous run of the agent")
        if newest is not None:
            self.changed(newest)
        return newest

    def open(self, fault: str, summary: str, evidence: tuple[Evidence, ...], *, exited_at: str | None) -> Incident:
        """Open an incident on first sight; the cause is refined when the log was read to its end."""
        incident = Incident(
            id=new_id("i", self._clock),
            server=self._server,
            fault=fault,
            confidence=Confidence.POSSIBLE,
            severity=Severity.CRITICAL,
            state=IncidentState.OPEN,
            opened_at=rfc3339(self._clock.now()),
            exited_at=exited_at,
            summary=summary,
            evidence=evidence,
        )
        return self.save(incident)

    def name_cause(self, incident: Incident, cause: Cause, *, exited_at: str | None) -> Incident:
        """Put the named cause into the incident."""
        finding = cause.finding
        return self.save(
            msgspec.structs.replace(
                incident,
                fault=finding.fault,
                mechanism=finding.mechanism,
                confidence=finding.confidence,
                severity=finding.severity,
                summary=finding.summary,
                evidence=finding.evidence or incident.evidence,
                explains=finding.explains,
                runbook=finding.runbook,
                exited_at=exited_at or incident.exited_at,
            )
        )

    def close(self, incident: Incident, state: IncidentState, note: str) -> Incident:
        """Close it without an action: it healed by itself, or nothing can be done."""
        now = rfc3339(self._clock.now())
        resolved_at = now if state is IncidentState.RESOLVED else None
        return self.save(msgspec.structs.replace(incident, state=state, note=note, resolved_at=resolved_at))

    def save(self, incident: Incident) -> Incident:
        """Journal first, then tell."""
        self._journal.save_incident(incident)
        self.changed(incident)
        return incident

    def changed(self, incident: Incident) -> None:
        """The remediator has changed and saved it: keep and tell."""
        self.active = None if incident.state.closed else incident
        self._publish(incident)
