"""What the watcher says on its terminal: one line per thing that happened, cause first, numbers with units.

In: servers' states and incidents as they change. Out: lines with the time of day (UTC) on one stream, read live or
with `grep` afterwards. The arithmetic of an action is said once, when the action is first shown; what the proofs say
is not said a second time as the outcome.
"""

from __future__ import annotations

from typing import TextIO

from agent.model import (
    Action,
    ActionState,
    Alert,
    AlertState,
    Clock,
    Incident,
    IncidentState,
    Mode,
    Severity,
    parse_rfc3339,
)
from agent.watch.liveness import Standing

STATES = {
    IncidentState.OPEN: "INCIDENT",
    IncidentState.AWAITING_APPROVAL: "WAITS FOR APPROVAL",
    IncidentState.RESOLVED: "RESOLVED",
    IncidentState.UNRESOLVED: "UNRESOLVED",
}
UNDER_WAY = (IncidentState.ACTING, IncidentState.VERIFYING)


class Narrator:
    """Writes lines with the time of day; a closed terminal is no reason to stop watching."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._said: dict[str, tuple[object, ...]] = {}
        self._reasons: dict[str, set[str]] = {}  # incident -> the reasons told

    def line(self, text: str) -> None:
        """One line; further lines of ``text`` are indented under it."""
        head, *rest = [_plain(one) for one in text.splitlines()] or [""]
        stamp = self._clock.now().strftime("%H:%M:%S")
        body = "\n".join([f"{stamp} agent: {head}", *(f"{'':16}{one}" for one in rest)])
        try:
            self._out.write(body + "\n")
            self._out.flush()
        except (OSError, ValueError):
            return

    def state(self, server: str, standing: Standing) -> None:
        """The server changed its state."""
        self.line(f"{server} is {standing.state.value}: {standing.reason}")

    def incident(self, incident: Incident) -> None:
        """An incident changed; what was already said is not said again. Its end is said last."""
        if not incident.state.closed:
            self._incident(incident)
        for action in incident.actions:
            self._action(action, self._reasons.setdefault(incident.id, set()))
        if incident.state.closed:
            self._incident(incident)
            self._forget(incident)

    def alert(self, alert: Alert) -> None:
        """An alert fires or has resolved; one that only informs, or may still pass, is no line."""
        if alert.state is AlertState.PENDING or alert.labels.get("severity") == Severity.INFO.value:
            return
        self.line("\n".join(_alert_lines(alert)))

    def _incident(self, incident: Incident) -> None:
        key = (incident.state, incident.fault, incident.summary, incident.note)
        if incident.state not in UNDER_WAY and self._said.get(incident.id) != key:
            self._said[incident.id] = key
            self.line("\n".join(_incident_lines(incident)))

    def _action(self, action: Action, told: set[str]) -> None:
        key = (action.state, action.outcome)
        decided_alone = action.state is ActionState.APPROVED and action.mode is Mode.AUTO
        if decided_alone or self._said.get(action.id) == key:
            return
        self._said[action.id] = key
        why = [reason for reason in action.why if reason not in told]
        told.update(why)
        self.line("\n".join(_action_lines(action, why)))

    def _forget(self, incident: Incident) -> None:
        for key in (incident.id, *(action.id for action in incident.actions)):
            self._said.pop(key, None)
        self._reasons.pop(incident.id, None)


class Troubles:
    """What the agent itself cannot do, said when it begins, when its reason changes and when it ends."""

    def __init__(self, narrator: Narrator) -> None:
        self._narrator = narrator
        self._said: dict[str, str] = {}

    def saw(self, what: str, error: str | None, meanwhile: str) -> None:
        """``error`` None = it works."""
        if error is None:
            if self._said.pop(what, None) is not None:
                self._narrator.line(f"{what} works again")
        elif self._said.get(what) != error:
            self._said[what] = error
            self._narrator.line(f"{what} fails: {error} ({meanwhile})")


def _plain(text: str) -> str:
    """Without control characters: labels and texts of others must not steer a terminal."""
    return "".join(one if one.isprintable() else " " for one in text)


def _alert_lines(alert: Alert) -> list[str]:
    summary = alert.annotations.get("summary", "")
    if alert.state is AlertState.RESOLVED:
        began, ended = alert.starts_at or alert.active_at, alert.ends_at or alert.active_at
        seconds = (parse_rfc3339(ended) - parse_rfc3339(began)).total_seconds()
        return [f"alert {alert.name} of {alert.server} is over after {seconds:.0f} s: {summary}"]
    lines = [f"ALERT {alert.name} of {alert.server} [{alert.labels.get('severity', '')}]: {summary}"]
    return [*lines, *(text for text in (alert.annotations.get("description"),) if text)]


def _incident_lines(incident: Incident) -> list[str]:
    """The cause once, when it is named; then only what is new. What is being done, the actions say."""
    mechanism = f" ({incident.mechanism.value})" if incident.mechanism else ""
    name = f"{STATES[incident.state]} {incident.id} {incident.fault}{mechanism}"
    if incident.state is IncidentState.AWAITING_APPROVAL:
        return [name]
    if incident.state is IncidentState.RESOLVED:
        return [f"{name}: {_ending(incident)}"]
    lines = [f"{name} [{incident.severity.value}]: {incident.summary}"]
    if incident.note:
        lines.append(f"what to do: {incident.note}")
    return lines


def _ending(incident: Incident) -> str:
    """What repaired it, by name: the proofs stand right above. Without a repair, what is known of the end."""
    kept = [action.change for action in incident.actions if action.state is ActionState.VERIFIED]
    if kept:
        return f"repaired and proven: {'; '.join(kept)}"
    return incident.note or "it ended without a repair"


def _action_lines(action: Action, why: list[str]) -> list[str]:
    """``why``: the reasons that this incident has not told yet."""
    lines = [f"action {action.id} {action.action} [{action.state.value}]: {action.change}"]
    lines += [f"  {reason}" for reason in why]
    if action.state is ActionState.AWAITING_APPROVAL:
        lines += [f"  cost: {action.cost}"] if action.cost else []
        lines.append(f"  approve: agent approve {action.id}    deny: agent deny {action.id}")
    if action.state is ActionState.PROPOSED and action.mode is Mode.DRY_RUN:
        lines.append("  dry run: nothing was changed")
    lines += [
        f"  proof {proof.kind}{f' {proof.subject}' if proof.subject else ''}: "
        f"{'held' if proof.passed else 'failed'}{f' ({proof.detail})' if proof.detail else ''}"
        for proof in action.proof
        if proof.passed is not None and action.state.final
    ]
    if action.outcome_beyond_proof:
        lines.append(f"  {action.outcome_beyond_proof}")
    return lines
