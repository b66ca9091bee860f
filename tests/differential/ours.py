"""The scene as the watcher judges it: a store and a judge a target, one evaluation at each scrape.

In: a scene's targets and the rules with a profile. Out: :class:`Judged`: what every rule's expression gave at every
evaluation, which alerts were pending and firing after it, what recording rules wrote, and which alerts were told.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.alerts import Judge, Rule, RuleSet
from agent.alerts.judge import _Kept
from agent.alerts.lifecycle import Active, alert_series
from agent.model import Alert
from agent.series import Labels, Store, Vector, labels_of
from agent.series.promql import Query
from tests.differential.scenes import BASE_MS, Answer, Target

TEXT = "text/plain; version=0.0.4; charset=utf-8"
Moment = dict[Labels, float]


@dataclass
class Judged:
    """Times in ms since the epoch. ``vectors`` and ``written`` by the rule's key, then by time.

    ``states`` holds ``ALERTS`` (1) and ``ALERTS_FOR_STATE`` (seconds since BASE_MS) by the rule's interval.
    """

    vectors: dict[str, dict[int, Moment]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    states: dict[str, dict[int, Moment]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    written: dict[str, dict[int, Moment]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    errors: list[str] = field(default_factory=list)
    told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    evaluations: int = 0


class Watched(Judge):
    """A judge that notes what each rule gave; it judges as the one above it does."""

    into: Judged
    _now: _Kept

    def _evaluated(self, kept: _Kept, at_ms: int) -> Iterable[Active]:
        self._now = kept
        changed = super()._evaluated(kept, at_ms)
        if kept.alerting is not None:
            states = self.into.states[kept.rule.key][at_ms]
            for labels, value in alert_series(kept.rule, kept.alerting.active.values()):
                since = dict(labels)["__name__"] == "ALERTS_FOR_STATE"
                states[labels] = value - BASE_MS // 1000 if since else value
        return changed

    def _vector(self, query: Query, at_ms: int) -> Vector:
        vector = super()._vector(query, at_ms)
        found = self.into.vectors[self._now.rule.key][at_ms]
        found.update((element.labels, element.value) for element in vector)
        return vector

    def _write(self, kept: _Kept, samples: list[tuple[Labels, float]], at_ms: int) -> None:
        self.into.written[kept.rule.key][at_ms].update(samples)
        super()._write(kept, samples, at_ms)


def judge(targets: Iterable[Target], rules: RuleSet) -> Judged:
    """All targets, each under its own rules."""
    found = Judged()
    for target in targets:
        own = rules.for_target("agent" if target.agent else "server")
        store = Store(own.selection(), target=None if target.agent else target.labels)
        judging = Watched(own, store, server=target.labels["instance"])
        judging.into = found
        for answer in target.answers:
            _bring(store, target, answer)
            _note(found, judging.evaluate(answer.at_ms))
            found.evaluations += 1
        broken = {one.rule: one.error for one in judging.statuses() if one.error}
        found.errors += [f"{target.labels['instance']}: {rule}: {error}" for rule, error in broken.items()]
    return found


def _note(found: Judged, changes: Iterable[Alert]) -> None:
    for alert in changes:
        found.told[alert.name].add(alert.state.value)


def _bring(store: Store, target: Target, answer: Answer) -> None:
    frame, at_ms = answer.frame, answer.scraped_ms
    if frame is None:
        store.failed(at_ms=at_ms, seconds=0.01)
    elif target.agent:
        samples = [(labels_of({**dict(labels), **target.labels}), value) for labels, value in frame.items()]
        store.record("own", samples, at_ms=at_ms)
    else:
        store.scraped(exposition(frame), TEXT, at_ms=at_ms, seconds=0.01)


def exposition(frame: Mapping[Labels, float]) -> bytes:
    """The text of an answer."""
    return "".join(f"{head_of(labels)} {number(value)}\n" for labels, value in frame.items()).encode()


@functools.cache
def head_of(labels: Labels) -> str:
    """``name{label="value",…}`` as the text format and PromQL have it."""
    pairs = dict(labels)
    name = pairs.pop("__name__", "")
    inner = ",".join(f"{label}={quoted(value)}" for label, value in pairs.items())
    return f"{name}{{{inner}}}"


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def number(value: float) -> str:
    """The shortest text that reads back as the same value."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def interval_of(rules: RuleSet, rule: Rule, step_ms: int) -> int:
    """How often the rule is evaluated: its group's interval, at the least the step of the scrapes."""
    group = next(group for group in rules.groups if group.name == rule.group and rule in group.rules)
    return max(step_ms, group.interval_ms or 0)
