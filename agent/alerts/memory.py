"""What of the alerts must outlive the process: plain values out, and back.

The state of Prometheus that survives its restart is the series ``ALERTS_FOR_STATE``. The agent keeps the alerts
themselves, with the texts that were told, so that the end of an alert can be told even when its rule is gone. Values
are written as text, since JSON has no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from agent.alerts.lifecycle import Active, Alerting, State
from agent.errors import AgentError
from agent.series import labels_of


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One alert. ``source`` are the labels that the expression gave; times in ms since the epoch."""

    labels: dict[str, str]
    source: dict[str, str]
    value: str
    state: Literal["inactive", "pending", "firing"]
    active_at: int
    fired_at: int | None = None
    keep_since: int | None = None
    resolved_at: int | None = None
    annotations: dict[str, str] = {}  # msgspec copies it

    def active(self) -> Active:
        """The alert as the lifecycle has it."""
        return Active(
            labels=labels_of(self.labels),
            source=labels_of(self.source),
            value=_number(self.value),
            active_at=self.active_at,
            state=State(self.state),
            fired_at=self.fired_at,
            keep_since=self.keep_since,
            resolved_at=self.resolved_at,
        )


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """``at_ms``: the last evaluation; ``rules``: alerts by the key of their rule."""

    v: Literal[1]
    at_ms: int
    rules: dict[str, list[Remembered]]


def remember(at_ms: int, rules: Iterable[Alerting], untold: Iterable[tuple[str, Remembered]] = ()) -> dict[str, Any]:
    """Plain values of everything that is pending, firing, or ended lately.

    ``untold``: alerts of rules that are gone, by the key of the rule, whose end was not told yet.
    """
    found = {one.rule.key: [_remembered(one, alert) for alert in one.remembered(at_ms)] for one in rules}
    found = {key: alerts for key, alerts in found.items() if alerts}
    for key, alert in untold:
        found.setdefault(key, []).append(alert)
    plain = msgspec.to_builtins(Memory(v=1, at_ms=at_ms, rules=found))
    assert isinstance(plain, dict)
    return plain


def read_memory(plain: Mapping[str, Any]) -> Memory:
    """Raises AgentError where these are not such values."""
    try:
        return msgspec.convert(plain, Memory)
    except msgspec.ValidationError as error:
        raise AgentError(
            f"the remembered alerts cannot be read: {error}", remedy="they start anew; nothing else is lost"
        ) from None


def _remembered(rule: Alerting, alert: Active) -> Remembered:
    return Remembered(
        labels=dict(alert.labels),
        source=dict(alert.source),
        value=repr(alert.value),
        state=alert.state.value,
        active_at=alert.active_at,
        fired_at=alert.fired_at,
        keep_since=alert.keep_since,
        resolved_at=alert.resolved_at,
        annotations=rule.annotations(alert),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
