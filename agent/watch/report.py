"""Tells everybody of a changed incident: the terminal, the metrics, the notifiers. Counts each change once.

In: incidents, as the keeper publishes them. Out: nothing comes back; none of the ways out may block or raise.
"""

from __future__ import annotations

from agent.model import Incident, IncidentState, parse_rfc3339
from agent.notify import Dispatcher
from agent.serve import AgentMetrics
from agent.watch.narrate import Narrator


class Report:
    """``incident`` is the World's ``publish``."""

    def __init__(self, narrator: Narrator, metrics: AgentMetrics, dispatcher: Dispatcher) -> None:
        self._narrator = narrator
        self._metrics = metrics
        self._dispatcher = dispatcher
        self._open: dict[str, set[str]] = {}
        self._finished: set[str] = set()

    def incident(self, incident: Incident) -> None:
        """Say it, count it, hand it to the notifiers."""
        self._narrator.incident(incident)
        self._count(incident)
        self._dispatcher.publish(incident)

    def _count(self, incident: Incident) -> None:
        open_now = self._open.setdefault(incident.server, set())
        if incident.state.closed:
            self._metrics.incident(incident.server, incident.fault, incident.state.value)
            open_now.discard(incident.id)
            self._repaired(incident)
        elif incident.id not in open_now and incident.state is not IncidentState.OPEN:
            open_now.add(incident.id)  # counted under its named cause, not under the first guess
            self._metrics.incident(incident.server, incident.fault, "opened")
        self._metrics.set_incidents_open(incident.server, len(open_now))
        for action in incident.actions:
            if action.state.final and action.id not in self._finished:
                self._finished.add(action.id)
                self._metrics.action(incident.server, action.action, action.state.value)
        if incident.state.closed:
            self._finished -= {action.id for action in incident.actions}

    def _repaired(self, incident: Incident) -> None:
        if incident.state is not IncidentState.RESOLVED or not incident.actions or incident.resolved_at is None:
            return
        began = parse_rfc3339(incident.exited_at or incident.opened_at)
        self._metrics.time_to_repair(max(0.0, (parse_rfc3339(incident.resolved_at) - began).total_seconds()))
