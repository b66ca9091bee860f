"""Unit tests of rules, run in process with the outcome that ``promtool test rules`` gives (cmd/promtool/unittest.go).

In: a test file. Out: for each of its cases whether it holds, and if not, what was expected and what came. All groups
are evaluated at every evaluation interval from time zero on, on one store, as promtool does; a case at a time between
two evaluations is held against the earlier one. Never here: the split by target, the clock, the network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.alerts.compile import compile_group
from agent.alerts.duration import format_duration
from agent.alerts.lifecycle import Alerting, Recording, State, alert_series
from agent.alerts.notation import Point
from agent.alerts.problem import Problem, raised
from agent.alerts.rule import Group, Rule
from agent.alerts.rulefile import read_rule_file
from agent.alerts.testfile import AlertCase, ExprCase, TestFile, TestGroup, read_test_file
from agent.errors import AgentError, ConfigError
from agent.series.data import NAME, Labels
from agent.series.promql import Element, Query, Session, Vector, compile_query
from agent.series.selection import Selection
from agent.series.store import Store

_FOREVER_MS = 100 * 365 * 86_400_000
_PAD = " " * 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that does not hold; ``text`` has several lines, ``where`` is ``file:line``."""

    where: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one file."""

    path: Path
    passed: int
    failures: tuple[Failure, ...]


def run_test_file(path: Path) -> Outcome:
    """Raises ConfigError where the test file or its rules cannot be read."""
    file = read_test_file(path)
    if not file.rule_files:
        raise ConfigError("no `rule_files`", where=f"{path}:1", remedy="name the rule files that are tested")
    groups = _groups(file.rule_files)
    passed, failures = 0, []
    for group in file.groups:
        found = list(_Run(file, group, groups).failures())
        failures += found
        passed += max(0, len(group.alerts) + len(group.expressions) - len(found))
    return Outcome(path=path, passed=passed, failures=tuple(failures))


def _groups(paths: Sequence[Path]) -> list[Group]:
    """The rules alone, not what they must be to each other: a test may bring its thresholds as series."""
    groups: list[Group] = []
    problems: list[Problem] = []
    for path in paths:
        raw, found = read_rule_file(path)
        problems += found
        for one in raw:
            group, found = compile_group(one, compile_query)
            groups.append(group)
            problems += found
    raised(problems)
    return groups


class _Feed:
    """A series of the test and how far it was loaded."""

    def __init__(self, labels: Labels, points: Sequence[Point], step_ms: int) -> None:
        self.labels = labels
        self._points = points
        self._step_ms = step_ms
        self._next = 0

    def until(self, at_ms: int) -> Iterator[tuple[int, float]]:
        """The samples since the last call, up to this time."""
        while self._next < len(self._points) and self._next * self._step_ms <= at_ms:
            point = self._points[self._next]
            if point is not None:
                yield self._next * self._step_ms, point
            self._next += 1


class _Run:
    """One item of ``tests`` on a store of its own."""

    def __init__(self, file: TestFile, group: TestGroup, groups: Sequence[Group]) -> None:
        self._file = file
        self._group = group
        self._store = Store(Selection.all(_FOREVER_MS))
        self._session = Session(self._store, interval_ms=file.evaluation_ms)
        self._feeds = [_Feed(labels, points, group.interval_ms) for labels, points in group.series]
        rank = {name: index for index, name in enumerate(file.order)}
        ordered = sorted(groups, key=lambda one: rank.get(one.name, 0))
        self._steps = [_Step(group, rule) for group in ordered for rule in group.rules]

    def failures(self) -> Iterator[Failure]:
        """Evaluates everything up to the last case."""
        cases = sorted(self._group.alerts, key=lambda case: case.eval_ms)
        step_ms = self._file.evaluation_ms
        for at_ms in range(0, self._group.last_ms + 1, step_ms):
            self._load(at_ms)
            try:
                for step in self._steps:
                    self._evaluate(step, at_ms)
            except AgentError as error:
                yield self._failed(self._group.where, f"time: {format_duration(at_ms)},\n    {error.message}")
                return
            while cases and cases[0].eval_ms < at_ms + step_ms:
                yield from self._alerts(cases.pop(0))
        for case in self._group.expressions:
            yield from self._expression(case)

    def _load(self, at_ms: int) -> None:
        for feed in self._feeds:
            for time_ms, value in feed.until(at_ms):
                self._store.append(feed.labels, time_ms, value)
        self._session.changed()

    def _evaluate(self, step: _Step, at_ms: int) -> None:
        samples = step.evaluate(self._session, at_ms)
        if samples or step.wrote:
            self._store.record(step.source, samples, at_ms=at_ms)
            self._session.changed()
        step.wrote = bool(samples)

    # -- what is held against the cases -------------------------------------------------------------------

    def _alerts(self, case: AlertCase) -> Iterator[Failure]:
        got = sorted(
            (pair for step in self._steps if step.rule.name == case.alertname for pair in step.firing()),
            key=lambda pair: sorted(pair[0].items()),
        )
        expected = sorted(
            (({**one.labels, "alertname": case.alertname}, one.annotations) for one in case.expected),
            key=lambda pair: sorted(pair[0].items()),
        )
        if [(_kept(one), _kept(two)) for one, two in expected] != [(_kept(one), _kept(two)) for one, two in got]:
            head = f"alertname: {case.alertname}, time: {format_duration(case.eval_ms)},"
            yield self._failed(case.where, f"{head}\n{_both(_alerts_text(expected), _alerts_text(got))}")

    def _expression(self, case: ExprCase) -> Iterator[Failure]:
        head = f"expr: {case.expr!r}, time: {format_duration(case.eval_ms)},"
        try:
            value = compile_query(case.expr).instant(self._store, case.eval_ms, interval_ms=self._file.evaluation_ms)
        except AgentError as error:
            yield self._failed(case.where, f"{head}\n{_PAD}{error.message}")
            return
        got = sorted((element.labels, element.value) for element in _vector(value))
        expected = sorted(case.expected)
        same = len(got) == len(expected) and all(
            mine[0] == theirs[0] and _equal(mine[1], theirs[1], self._file.fuzzy)
            for mine, theirs in zip(got, expected, strict=True)
        )
        if not same:
            yield self._failed(case.where, f"{head}\n{_both(_samples_text(expected), _samples_text(got))}")

    def _failed(self, where: str, text: str) -> Failure:
        name = f"    name: {self._group.name},\n" if self._group.name else ""
        return Failure(where=where, text=f"{name}    {text}")


class _Step:
    """One rule with its state. ``wrote``: its last evaluation gave samples, which end when it gives none."""

    def __init__(self, group: Group, rule: Rule) -> None:
        self.rule = rule
        self.source = f"{group.file}\0{rule.key}\0{rule.where}"
        self.wrote = False
        self._query: Query = compile_query(rule.text)
        self._recording = Recording(rule, group.limit) if rule.record else None
        self._alerting = None if rule.record else Alerting(rule, group.limit)

    def evaluate(self, session: Session, at_ms: int) -> list[tuple[Labels, float]]:
        """The samples that the rule writes: its record, or ``ALERTS`` and ``ALERTS_FOR_STATE``."""
        vector = _vector(self._query.instant(session.storage, at_ms, session=session))
        if self._recording is not None:
            return self._recording.samples(vector)
        assert self._alerting is not None
        self._alerting.evaluate(vector, at_ms)
        return alert_series(self.rule, self._alerting.active.values())

    def firing(self) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """Labels and annotations of the alerts that fire."""
        if self._alerting is not None:
            for alert in self._alerting.active.values():
                if alert.state is State.FIRING:
                    yield dict(alert.labels), self._alerting.annotations(alert)


def _vector(value: object) -> Vector:
    """A scalar is one element without labels, as in a rule of Prometheus."""
    if isinstance(value, float):
        return [Element((), value)]
    assert isinstance(value, list), "a rule's expression is a vector or a scalar"
    return value


def _kept(pairs: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in pairs.items() if text}


def _equal(one: float, two: float, fuzzy: bool) -> bool:
    if one == two or (one != one and two != two):
        return True
    return fuzzy and two in (math.nextafter(one, math.inf), math.nextafter(one, -math.inf))


def _both(expected: str, got: str) -> str:
    return f"{_PAD}exp:{expected}\n{_PAD}got:{got}"


def _alerts_text(alerts: Sequence[tuple[dict[str, str], dict[str, str]]]) -> str:
    if not alerts:
        return "[]"
    rows = []
    for index, (labels, notes) in enumerate(alerts):
        rows.append(f"{_PAD}    {index}:\n{_PAD}      Labels:{_pairs_text(labels)}")
        rows.append(f"{_PAD}      Annotations:{_pairs_text(notes)}")
    return "[\n" + "\n".join(rows) + f"\n{_PAD}    ]"


def _samples_text(samples: Sequence[tuple[Labels, float]]) -> str:
    if not samples:
        return " nil"
    texts = []
    for labels, value in samples:
        pairs = dict(labels)
        name = pairs.pop(NAME, "")
        texts.append(f"{name}{_pairs_text(pairs)} {value:g}" if value == value else f"{name}{_pairs_text(pairs)} NaN")
    return " " + ", ".join(texts)


def _pairs_text(pairs: dict[str, str]) -> str:
    inner = ", ".join(f'{name}="{_escaped(text)}"' for name, text in sorted(pairs.items()))
    return "{" + inner + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
