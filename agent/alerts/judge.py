"""The judge of one target: its rules, evaluated on its store, moment after moment.

In: a rule set of one target, the target's store, a moment at each call. Out: the alerts that changed, and for every
rule its state, what was not judged, whether it works, and what it costs. Rules of a group run in order, and what a
recording rule makes is there for the next one. A rule that fails stops no other. No clock of its own and no I/O: what
must outlive the process is handed out by :meth:`Judge.dump`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec

from agent.alerts.lifecycle import Active, Alerting, Recording, RuleError, State, alert_series
from agent.alerts.memory import Remembered, read_memory, remember
from agent.alerts.rule import ALERT_SERIES, Group, Rule, RuleSet, Store, recorded
from agent.alerts.unknown import Contract, Knowledge, Unknown, UnknownKind
from agent.errors import AgentError
from agent.model import Alert, AlertState, rfc3339
from agent.series import Labels
from agent.series.promql import Element, Query, Session, Vector

_EARLY = 0.1
_EARLY_MS = 500


class RuleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says. ``state`` is Prometheus' own; ``unknown`` the reason why it says nothing, None where it does,
    and ``unknown_kind`` the same in a word (:class:`agent.alerts.UnknownKind`).

    ``not_judged``: reasons of ``or`` branches beside one that was judged. ``value`` is the highest of the last result,
    None where it was empty. ``evaluated_at`` in ms since the epoch, ``seconds`` what that evaluation took.
    """

    rule: str
    group: str
    where: str
    kind: Literal["alert", "record"]
    target: str
    severity: str
    state: Literal["inactive", "pending", "firing"]
    unknown: str | None
    unknown_kind: str | None
    not_judged: tuple[str, ...]
    health: Literal["ok", "err", "unknown"]
    error: str | None
    value: float | None
    series: int
    evaluated_at: int | None
    seconds: float


class _Kept:
    """A rule with what it did last."""

    def __init__(self, rule: Rule, group: Group) -> None:
        self.rule = rule
        self.offset_ms = group.query_offset_ms
        self.alerting = None if rule.record else Alerting(rule, group.limit)
        self.recording = Recording(rule, group.limit) if rule.record else None
        self.error: str | None = None
        self.at_ms: int | None = None
        self.value: float | None = None
        self.series = 0
        self.seconds = 0.0
        self.wrote = False


class Judge:
    """``server`` is the watched server's name; ``timer`` measures what a rule costs (seconds)."""

    def __init__(
        self,
        rules: RuleSet,
        store: Store,
        *,
        server: str,
        contract: Contract | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.contract = contract
        self._server = server
        self._store = store
        self._timer = timer
        self._session = Session(store)
        self._groups = [(group, [_Kept(rule, group) for rule in group.rules]) for group in rules.groups]
        self._rules = [kept for _, rules in self._groups for kept in rules]
        self._ran: dict[int, int] = {}
        self._recorded = recorded([kept.rule for kept in self._rules])
        selectors = (selector for kept in self._rules for selector in kept.rule.expression.selectors)
        self._writes_alerts = any(selector.name in ALERT_SERIES for selector in selectors)
        self._gone: list[tuple[str, Remembered]] = []
        self._at_ms = 0

    # What time brings

    def evaluate(self, at_ms: int) -> tuple[Alert, ...]:
        """Evaluate the groups that are due; the alerts that became pending, firing or resolved, as they are now."""
        if at_ms < self._at_ms:
            self._set_back(self._at_ms - at_ms)
        self._at_ms = at_ms
        changes = [self._ended(one, at_ms) for _, one in self._gone]
        self._gone = []
        self._session.changed()
        for index, (group, rules) in enumerate(self._groups):
            if self._due(index, group, at_ms):
                self._ran[index] = at_ms
                for kept in rules:
                    changes.extend(self._step(kept, at_ms))
        return tuple(changes)

    def _set_back(self, by_ms: int) -> None:
        """The wall clock was set back: what has been waited so far stays waited."""
        for kept in self._rules:
            for alert in kept.alerting.active.values() if kept.alerting is not None else ():
                alert.set_back(by_ms)

    def _due(self, index: int, group: Group, at_ms: int) -> bool:
        """Whether the group's interval has passed; a tick that comes a little early counts, so that none is lost."""
        last, interval = self._ran.get(index), group.interval_ms
        if last is None or interval is None or at_ms < last:
            return True
        return at_ms - last >= interval - min(interval * _EARLY, _EARLY_MS)

    def _step(self, kept: _Kept, at_ms: int) -> Iterable[Alert]:
        started = self._timer()
        kept.at_ms = at_ms
        changed: Iterable[Active] = ()
        try:
            changed = self._evaluated(kept, at_ms)
            kept.error = None
        except RuleError as error:
            kept.error, changed = error.message, error.ended
        except AgentError as error:
            kept.error = error.message
        except Exception as error:  # a defect of one rule must not stop the judging of all others
            kept.error = f"the evaluation broke: {type(error).__name__}: {error}"
        kept.seconds = self._timer() - started
        return [self._alert(kept, alert) for alert in changed]

    def _evaluated(self, kept: _Kept, at_ms: int) -> Iterable[Active]:
        vector = self._vector(kept.rule.query, at_ms - kept.offset_ms)
        kept.series = len(vector)
        kept.value = max((element.value for element in vector), default=None)
        if kept.recording is not None:
            self._write(kept, kept.recording.samples(vector), at_ms)
            return ()
        assert kept.alerting is not None
        changed = kept.alerting.evaluate(vector, at_ms, lambda: self._known(at_ms).of(kept.rule, ())[0] is None)
        if self._writes_alerts:
            self._write(kept, alert_series(kept.rule, kept.alerting.active.values()), at_ms)
        return changed

    def _vector(self, query: Query, at_ms: int) -> Vector:
        value = query.instant(self._store, at_ms, session=self._session)
        if isinstance(value, float):
            return [Element((), value)]
        if isinstance(value, list):
            return value
        raise RuleError("rule result is not a vector or scalar")

    def _write(self, kept: _Kept, samples: list[tuple[Labels, float]], at_ms: int) -> None:
        """What ends with an empty result is told to the store once."""
        if samples or kept.wrote:
            self._store.record(kept.rule.key, samples, at_ms=at_ms - kept.offset_ms)
            self._session.changed()
        kept.wrote = bool(samples)

    # What is known now

    def alerts(self) -> tuple[Alert, ...]:
        """All that is pending or firing."""
        return self._those(lambda alert: alert.state is not State.INACTIVE)

    def resolved(self) -> tuple[Alert, ...]:
        """What ended within the last fifteen minutes, for receivers that must hear it more than once."""
        return self._those(lambda alert: alert.state is State.INACTIVE)

    def _those(self, wanted: Callable[[Active], bool]) -> tuple[Alert, ...]:
        return tuple(
            self._alert(kept, alert)
            for kept in self._rules
            if kept.alerting is not None
            for alert in kept.alerting.active.values()
            if wanted(alert)
        )

    def statuses(self) -> tuple[RuleStatus, ...]:
        """Every rule as of its last evaluation; what is unknown is found out now, from the store as it is."""
        known = self._known(self._at_ms)
        return tuple(self._status(kept, known) for kept in self._rules)

    def _known(self, at_ms: int) -> Knowledge:
        errors = {kept.rule.name: kept.error for kept in self._rules if kept.rule.record and kept.error}
        return Knowledge(self._store, at_ms, self._recorded, self.contract, errors)

    def _status(self, kept: _Kept, known: Knowledge) -> RuleStatus:
        rule, alerting = kept.rule, kept.alerting
        active = [one for one in alerting.active.values() if one.state is not State.INACTIVE] if alerting else []
        unknown, aside = known.of(rule, [one.value for one in active])
        if kept.at_ms is None:
            unknown = Unknown(UnknownKind.NOT_YET, "not evaluated yet")
        return RuleStatus(
            rule=rule.name,
            group=rule.group,
            where=rule.where,
            kind="record" if rule.record else "alert",
            target=rule.target.value,
            severity=rule.severity,
            state=alerting.state.value if alerting else "inactive",
            unknown=unknown.reason if unknown is not None else None,
            unknown_kind=unknown.kind.value if unknown is not None else None,
            not_judged=aside,
            health="unknown" if kept.at_ms is None else "err" if kept.error else "ok",
            error=kept.error,
            value=kept.value,
            series=kept.series,
            evaluated_at=kept.at_ms,
            seconds=kept.seconds,
        )

    # What outlives the process

    def dump(self) -> dict[str, Any]:
        """What is active, as plain values for JSON. Write it when something changed, and while anything is active."""
        rules = [kept.alerting for kept in self._rules if kept.alerting is not None]
        return remember(self._at_ms, rules, self._gone)

    def restore(self, dumped: Mapping[str, Any], *, continued: bool = False) -> None:
        """Take up what :meth:`dump` gave, before the first evaluation. Raises AgentError where it cannot be read.

        Pending alerts go on where they stood; what was told as firing is not told again; what ended meanwhile, or
        whose rule is gone, is told as resolved at the next evaluation. ``continued``: the rules were read anew and
        nothing stood still meanwhile.
        """
        memory = read_memory(dumped)
        self._at_ms = memory.at_ms
        rules = {kept.rule.key: kept.alerting for kept in self._rules if kept.alerting is not None}
        for key, alerts in memory.rules.items():
            if key in rules:
                rules[key].restore([one.active() for one in alerts], memory.at_ms, continued=continued)
            else:
                self._gone.extend((key, one) for one in alerts if one.state == State.FIRING.value)

    # Alerts as people get them

    def _alert(self, kept: _Kept, alert: Active) -> Alert:
        assert kept.alerting is not None
        annotations = kept.alerting.annotations(alert)
        return Alert(
            server=self._server,
            labels=dict(alert.labels),
            annotations=annotations,
            state=_TOLD[alert.state],
            active_at=_time(alert.active_at),
            starts_at=None if alert.fired_at is None else _time(alert.fired_at),
            ends_at=None if alert.resolved_at is None else _time(alert.resolved_at),
            value=alert.value,
            runbook=annotations.get("runbook_url") or None,
        )

    def _ended(self, gone: Remembered, at_ms: int) -> Alert:
        """The end of an alert whose rule is no longer there."""
        return Alert(
            server=self._server,
            labels=gone.labels,
            annotations=gone.annotations,
            state=AlertState.RESOLVED,
            active_at=_time(gone.active_at),
            starts_at=None if gone.fired_at is None else _time(gone.fired_at),
            ends_at=_time(at_ms),
            value=gone.active().value,
            runbook=gone.annotations.get("runbook_url") or None,
        )


_TOLD = {
    State.PENDING: AlertState.PENDING,
    State.FIRING: AlertState.FIRING,
    State.INACTIVE: AlertState.RESOLVED,
}


def _time(at_ms: int) -> str:
    return rfc3339(datetime.fromtimestamp(at_ms / 1000, timezone.utc))
