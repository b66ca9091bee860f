"""Tells everybody of a changed incident or alert: the terminal, the metrics, the notifiers. Counts each change once.

In: incidents, as the keeper publishes them, and alerts, as the judges do. Out: nothing comes back; none of the ways out
may block or raise. What is remembered to count once is forgotten when the incident is closed.

While an incident of a server is open its alerts are symptoms: they go to the terminal and to Alertmanager, which has
its own grouping, and no message is sent for them. One that still fires ten minutes after the incident was closed is a
message of its own: by then the windows of the rules have seen the repair.
"""

from __future__ import annotations

from agent.model import ActionState, Alert, AlertState, Clock, Incident, IncidentState, parse_rfc3339
from agent.notify import Dispatcher
from agent.serve import AgentMetrics
from agent.watch.narrate import Narrator

AFTER_SECONDS = 600.0


class Report:
    """``incident`` is the World's ``publish``; ``alert`` and ``remind`` are the judges' ways out."""

    def __init__(self, narrator: Narrator, metrics: AgentMetrics, dispatcher: Dispatcher, clock: Clock) -> None:
        self._narrator = narrator
        self._metrics = metrics
        self._dispatcher = dispatcher
        self._open: dict[str, set[str]] = {}
        self._named: set[str] = set()
        self._finished: set[str] = set()
        self._clock = clock
        self._symptoms: dict[str, Alert] = {}
        self._closed_at: dict[str, float] = {}

    def incident(self, incident: Incident) -> None:
        """Say it, count it, hand it to the notifiers."""
        self._narrator.incident(incident)
        self._count(incident)
        self._dispatcher.publish(incident)

    def alert(self, alert: Alert) -> None:
        """A changed alert: news, or a symptom of the incident that is open."""
        self._narrator.alert(alert)
        key = alert.fingerprint
        if alert.state is AlertState.RESOLVED:
            quiet = self._symptoms.pop(key, None) is not None
        else:
            quiet = self._covered(alert.server)
            if quiet and alert.state is AlertState.FIRING:
                self._symptoms[key] = alert
        (self._dispatcher.remind if quiet else self._dispatcher.publish)(alert)

    def remind(self, alert: Alert) -> None:
        """What was told in an earlier life of the watcher."""
        self._dispatcher.remind(alert)

    def look(self) -> None:
        """Now and then: symptoms that outlive their incident become messages."""
        for key, alert in list(self._symptoms.items()):
            if not self._covered(alert.server):
                del self._symptoms[key]
                self._dispatcher.publish(alert)

    def _covered(self, server: str) -> bool:
        """Whether an incident of the server is open, or was a short while ago."""
        closed_at = self._closed_at.get(server)
        lately = closed_at is not None and self._clock.monotonic() - closed_at < AFTER_SECONDS
        return lately or bool(self._open.get(server))

    def _count(self, incident: Incident) -> None:
        self._count_opened(incident)
        open_now = self._open.setdefault(incident.server, set())
        if incident.state.closed:
            self._metrics.incident(incident.server, incident.fault, incident.state.value)
            open_now.discard(incident.id)
            self._closed_at[incident.server] = self._clock.monotonic()
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
