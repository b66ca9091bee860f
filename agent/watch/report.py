"""Tells everybody of a changed incident: the terminal, the metrics, the notifiers. Counts each change once.

In: incidents, as the keeper publishes them. Out: nothing comes back; none of the ways out may block or raise. What
is remembered to count once is forgotten when the incident is closed.
"""

from __future__ import annotations

from agent.model import ActionState, Incident, IncidentState, parse_rfc3339
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
        self._named: set[str] = set()
        self._finished: set[str] = set()

    def incident(self, incident: Incident) -> None:
        """Say it, count it, hand it to the notifiers."""
        self._narrator.incident(incident)
        self._count(incident)
        self._dispatcher.publish(incident)

    def _count(self, incident: Incident) -> None:
        self._count_opened(incident)
        open_now = self._open.setdefault(incident.server, set())
        if incident.state.closed:
            self._metrics.incident(incident.server, incident.fault, incident.state.value)
            open_now.discard(incident.id)
            self._repaired(incident)
        else:
            open_now.add(incident.id)
        self._metrics.set_incidents_open(incident.server, len(open_now))
        self._count_actions(incident)
        if incident.state.closed:
            self._named.discard(incident.id)
            self._finished -= {action.id for action in incident.actions}

    def _count_opened(self, incident: Incident) -> None:
        """Under its named cause, not under the first guess: not before something is done about it."""
        if incident.state is not IncidentState.OPEN and incident.id not in self._named:
            self._named.add(incident.id)
            self._metrics.incident(incident.server, incident.fault, "opened")

    def _count_actions(self, incident: Incident) -> None:
        for action in incident.actions:
            if action.state.final and action.id not in self._finished:
                self._finished.add(action.id)
                self._metrics.action(incident.server, action.action, action.state.value)

    def _repaired(self, incident: Incident) -> None:
        proven = any(action.state is ActionState.VERIFIED for action in incident.actions)
        if incident.state is not IncidentState.RESOLVED or incident.resolved_at is None or not proven:
            return
        began = parse_rfc3339(incident.exited_at or incident.opened_at)
        self._metrics.time_to_repair(max(0.0, (parse_rfc3339(incident.resolved_at) - began).total_seconds()))
