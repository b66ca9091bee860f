"""One alerting rule's alerts through time: inactive, pending, firing, resolved (prometheus/rules/alerting.go).

In: what the rule's expression gave at a moment. Out: the alerts whose state changed. Texts are not written here: an
alert keeps the labels and the value of the last evaluation at which its condition held, and whoever tells it expands
the annotations from them, so that a tick on which nothing is told costs no templates.

Where this goes beyond Prometheus: what was firing when the agent stopped is firing when it starts again, and is told
as resolved if the condition ended meanwhile. Prometheus forgets it and leaves the end to Alertmanager's timeout.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.alerts.rule import Rule
from agent.errors import AgentError
from agent.series import Labels
from agent.series.data import NAME
from agent.series.promql import Vector

RESOLVED_KEPT_MS = 15 * 60_000
TOLERANCE_MS = 3_600_000
"""A pending alert whose agent was away for longer starts anew (Prometheus' --rules.alert.for-outage-tolerance)."""
GRACE_MS = 60_000
"""A pending alert waits at least this long after a start, shorter ``for`` start anew (…for-grace-period is 10 m)."""
HOLD_MS = 600_000
"""What was firing stays so this long after a start where its rule cannot be judged yet."""
MAX_REMEMBERED = 1_000


class RuleError(AgentError):
    """A rule whose result cannot be used, as Prometheus would refuse it. ``ended``: alerts that end by it."""

    ended: Sequence[Active] = ()


class State(str, enum.Enum):
    """The states of Prometheus. A resolved alert is inactive and still remembered."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"


@dataclasses.dataclass(slots=True)
class Active:
    """One label set. Times in ms since the epoch; ``labels`` as told, ``source`` as the expression gave them."""

    labels: Labels
    source: Labels
    value: float
    active_at: int
    state: State = State.PENDING
    fired_at: int | None = None
    keep_since: int | None = None
    resolved_at: int | None = None

    def set_back(self, by_ms: int) -> None:
        """Move what is counted from; when it fired has been told and stays."""
        self.active_at -= by_ms
        self.keep_since = None if self.keep_since is None else self.keep_since - by_ms
        self.resolved_at = None if self.resolved_at is None else self.resolved_at - by_ms


@dataclasses.dataclass(slots=True)
class _Return:
    """What a start found: pending alerts that wait to be seen again, and firing ones that were not yet."""

    down_at: int
    continued: bool
    pending: dict[Labels, Active]
    firing: set[Labels]
    first_at: int | None = None


class Alerting:
    """The alerts of one rule. ``active`` holds resolved ones too, for fifteen minutes."""

    def __init__(self, rule: Rule, limit: int = 0) -> None:
        self.rule = rule
        self.active: dict[Labels, Active] = {}
        self._limit = limit
        self._templates = {name: template for name, template in rule.labels.items() if template.constant is None}
        self._constant = {
            name: template.text for name, template in rule.labels.items() if template.constant is not None
        }
        self._fixed = not any(template.uses_value for template in self._templates.values())
        self._named: dict[Labels, Labels] = {}
        self._return: _Return | None = None

    def restore(self, alerts: Iterable[Active], down_at: int, *, continued: bool) -> None:
        """Take up what was active at ``down_at``. ``continued``: the same process goes on with other rules."""
        pending = {}
        for alert in alerts:
            if alert.state is State.PENDING:
                pending[alert.labels] = alert
            else:
                self.active[alert.labels] = alert
        firing = {labels for labels, alert in self.active.items() if alert.state is State.FIRING}
        self._return = _Return(down_at, continued, pending, firing)

    def remembered(self, at_ms: int) -> list[Active]:
        """All alerts for :meth:`restore`; one that waits since the last start has gained nothing by waiting."""
        if self._return is None:
            return list(self.active.values())
        away = at_ms - self._return.down_at
        waiting = (dataclasses.replace(one, active_at=one.active_at + away) for one in self._return.pending.values())
        return [*self.active.values(), *waiting]

    def evaluate(self, vector: Vector, at_ms: int, judged: Callable[[], bool] = lambda: True) -> list[Active]:
        """Move every alert on; the alerts that changed state. Raises RuleError, after which nothing has moved, or all
        has ended (``limit``).

        ``judged`` is asked only after a restart: whether the rule could be judged at this moment.
        """
        changed: list[Active] = []
        if not vector and not self.active and self._return is None:
            return changed
        seen = self._seen(vector)
        held = self._resumed(self._return, seen, at_ms, judged) if self._return is not None else frozenset()
        for labels, (source, value) in seen.items():
            alert = self.active.get(labels)
            if alert is not None and alert.state is not State.INACTIVE:
                alert.source, alert.value = source, value
            else:
                alert = self.active[labels] = Active(labels, source, value, at_ms)
                if self.rule.for_ms > 0:
                    changed.append(alert)
        count = 0
        for labels, alert in list(self.active.items()):
            count += self._move(alert, labels in seen or labels in held, at_ms, changed)
        if self._limit and count > self._limit:
            raise self._over(count, at_ms, changed)
        return changed

    def _seen(self, vector: Vector) -> dict[Labels, tuple[Labels, float]]:
        seen: dict[Labels, tuple[Labels, float]] = {}
        for element in vector:
            labels = self.named(element.labels, element.value)
            if labels in seen:
                raise RuleError("vector contains metrics with the same labelset after applying alert labels")
            seen[labels] = (element.labels, element.value)
        return seen

    def _resumed(
        self, back: _Return, seen: Mapping[Labels, object], at_ms: int, judged: Callable[[], bool]
    ) -> frozenset[Labels]:
        """After a start: pending alerts that are seen go on; firing ones that cannot be judged yet are held."""
        if back.first_at is None:
            back.first_at = at_ms
        for labels in [labels for labels in back.pending if labels in seen]:
            self._resume(back.pending.pop(labels), back, at_ms)
        back.firing.difference_update(seen)
        waiting = bool(back.firing or back.pending) and at_ms - back.first_at < HOLD_MS and not judged()
        if not waiting:
            self._return = None
            return frozenset()
        return frozenset(back.firing)

    def _resume(self, alert: Active, back: _Return, at_ms: int) -> None:
        """Set the clock of a pending alert as Prometheus' RestoreForState does (prometheus/rules/group.go)."""
        away, hold = at_ms - back.down_at, self.rule.for_ms
        if not back.continued:
            if hold < GRACE_MS or away > TOLERANCE_MS:
                return
            left = hold - (back.down_at - alert.active_at)
            grace = min(GRACE_MS, away)
            if 0 < left < grace:
                alert.active_at = at_ms + grace - hold
            elif left > 0:
                alert.active_at += away
        self.active[alert.labels] = alert

    def _move(self, alert: Active, holds: bool, at_ms: int, changed: list[Active]) -> bool:
        """One alert's step; whether it is active after it."""
        if not holds:
            if self._kept(alert, at_ms):
                return True
            if alert.state is State.PENDING or self._forgotten(alert, at_ms):
                del self.active[alert.labels]
            if alert.state is not State.INACTIVE:
                if alert.state is State.FIRING:
                    changed.append(alert)
                alert.state, alert.resolved_at = State.INACTIVE, at_ms
            return False
        alert.keep_since = None
        if alert.state is State.PENDING and at_ms - alert.active_at >= self.rule.for_ms:
            alert.state, alert.fired_at = State.FIRING, at_ms
            changed.append(alert)
        return True

    def _kept(self, alert: Active, at_ms: int) -> bool:
        if alert.state is not State.FIRING or self.rule.keep_firing_ms <= 0:
            return False
        if alert.keep_since is None:
            alert.keep_since = at_ms
        return at_ms - alert.keep_since < self.rule.keep_firing_ms

    def _forgotten(self, alert: Active, at_ms: int) -> bool:
        return alert.resolved_at is not None and at_ms - alert.resolved_at > RESOLVED_KEPT_MS

    def _over(self, count: int, at_ms: int, changed: Sequence[Active]) -> RuleError:
        """Prometheus forgets all alerts of a rule that exceeds its limit; those that were firing before end here."""
        error = RuleError(f"exceeded limit of {self._limit} with {count} alerts")
        known = [one for one in self.active.values() if one.state is State.FIRING and one.fired_at != at_ms]
        error.ended = [*known, *(one for one in changed if one.state is State.INACTIVE)]
        for alert in known:
            alert.state, alert.resolved_at = State.INACTIVE, at_ms
        self.active.clear()
        return error

    def named(self, source: Labels, value: float) -> Labels:
        """The alert's labels: the element's, over them the rule's (expanded), over all ``alertname``."""
        known = self._named.get(source)
        if known is not None:
            return known
        pairs = dict(source)
        shown = pairs.copy()
        pairs.pop(NAME, None)
        pairs.update(self._constant)
        pairs.update((name, template.expand(shown, value)) for name, template in self._templates.items())
        pairs["alertname"] = self.rule.name
        labels = tuple(sorted((name, text) for name, text in pairs.items() if text))
        if self._fixed:
            if len(self._named) >= MAX_REMEMBERED:
                self._named.clear()
            self._named[source] = labels
        return labels

    def annotations(self, alert: Active) -> dict[str, str]:
        """The texts of an alert, from the last evaluation at which it held."""
        labels = dict(alert.source)
        return {name: template.expand(labels, alert.value) for name, template in self.rule.annotations.items()}

    @property
    def state(self) -> State:
        """The highest state of its alerts."""
        states = {alert.state for alert in self.active.values()}
        return next((state for state in (State.FIRING, State.PENDING) if state in states), State.INACTIVE)


def relabelled(source: Labels, name: str, labels: Mapping[str, str]) -> Labels:
    """The labels of a recorded series: the rule's name and labels over the element's."""
    pairs = {**dict(source), **labels, NAME: name}
    return tuple(sorted((label, text) for label, text in pairs.items() if text))


class Recording:
    """One recording rule: the samples that it gives."""

    def __init__(self, rule: Rule, limit: int = 0) -> None:
        self.rule = rule
        self._limit = limit
        self._labels = {name: template.text for name, template in rule.labels.items()}
        self._named: dict[Labels, Labels] = {}

    def samples(self, vector: Vector) -> list[tuple[Labels, float]]:
        """Raises RuleError for two series of one name, and above the group's limit."""
        found = [(self._name(element.labels), element.value) for element in vector]
        if len(found) > 1 and len({labels for labels, _ in found}) != len(found):
            raise RuleError("vector contains metrics with the same labelset after applying rule labels")
        if self._limit and len(found) > self._limit:
            raise RuleError(f"exceeded limit of {self._limit} with {len(found)} series")
        return found

    def _name(self, source: Labels) -> Labels:
        labels = self._named.get(source)
        if labels is None:
            if len(self._named) >= MAX_REMEMBERED:
                self._named.clear()
            labels = self._named[source] = relabelled(source, self.rule.name, self._labels)
        return labels


def alert_series(rule: Rule, alerts: Iterable[Active]) -> list[tuple[Labels, float]]:
    """``ALERTS`` and ``ALERTS_FOR_STATE`` as Prometheus writes them for alerts that are pending or firing."""
    samples = []
    for alert in alerts:
        if alert.state is not State.INACTIVE:
            labels = dict(alert.labels)
            samples.append((relabelled(alert.labels, "ALERTS", {**labels, "alertstate": alert.state.value}), 1.0))
            samples.append((relabelled(alert.labels, "ALERTS_FOR_STATE", {}), float(alert.active_at // 1000)))
    return samples
