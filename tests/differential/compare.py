"""One scene under one profile, in process and in Prometheus 3, with all that differs.

In: a scene, its targets and samples, a profile. Out: :class:`Outcome`. Equal means: the same label sets, and values
that differ by no more than one part in a thousand million (NaN equals NaN), at every evaluation of every rule; and the
same alerts, pending or firing since the same second, after every evaluation. What recording rules gave here is written
to the server as well, for the rules that read it; each of those rules is compared itself, so nothing rests on ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.alerts import Rule, RuleSet, load_rules
from agent.series import Labels, Match
from agent.series.data import NAME
from tests.differential.ours import interval_of, judge
from tests.differential.samples import Stored, recorded, scraped
from tests.differential.scenes import BASE_MS, FIRST_MS, Scene, Target
from tests.differential.server import prometheus
from tests.differential.states import compare_states
from tests.support.prometheus import program

CLOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Counts of what was compared, and in words what differs. ``told``: the states that each alert was told in."""

    prometheus: str
    samples: int
    evaluations: int
    rule_evaluations: int
    values: int
    values_not_bitwise: int
    state_vectors: int
    state_samples: int
    told: Mapping[str, frozenset[str]]
    differing: tuple[str, ...]


def names_read(rules: RuleSet) -> set[str]:
    """The metric names that the rules' expressions select."""
    matchers = (one for need in rules.needs() for one in need.matchers)
    return {one.value for one in matchers if one.name == NAME and one.match is Match.EQUAL}


def differential(
    scene: Scene, targets: list[Target], profile: str, folder: Path, ours: Callable[[RuleSet], RuleSet] | None = None
) -> Outcome:
    """The whole comparison; skips where Prometheus 3 is not there. ``ours`` changes the rules that are judged here."""
    server, promtool = program("prometheus", "3"), program("promtool", "3")
    rules, step_ms = load_rules(profile=profile), scene.step_s * 1000
    raw = scraped(targets, names_read(rules))
    judged = judge(targets, ours(rules) if ours is not None else rules)
    verdicts = compare_states(promtool, rules, raw, judged, scene, folder)
    differing = [*judged.errors, *(said for verdict in verdicts for said in verdict.said)]
    values = Values()
    with prometheus(server, folder / "prometheus") as running:
        version = running.version()
        written = recorded(judged.written[rule.key] for rule in rules.rules if rule.record)
        samples = running.write(_merged(raw, written))
        for rule in rules.rules:
            interval = interval_of(rules, rule, step_ms)
            times = range(BASE_MS + FIRST_MS, scene.end_ms + 1, interval)
            theirs = running.vectors(rule.text, times[0], times[-1], interval)
            values.compare(rule, judged.vectors[rule.key], theirs, times)
    return Outcome(
        prometheus=version,
        samples=samples,
        evaluations=judged.evaluations,
        rule_evaluations=values.evaluations,
        values=values.count,
        values_not_bitwise=values.inexact,
        state_vectors=sum(verdict.asked for verdict in verdicts),
        state_samples=sum(verdict.samples for verdict in verdicts),
        told={name: frozenset(states) for name, states in judged.told.items()},
        differing=(*differing, *values.differing),
    )


def _merged(raw: Stored, written: Stored) -> Stored:
    clashing = set(raw) & set(written)
    assert not clashing, clashing
    return {**raw, **written}


class Values:
    """What was compared so far."""

    def __init__(self) -> None:
        self.evaluations = self.count = self.inexact = 0
        self.differing: list[str] = []

    def compare(
        self,
        rule: Rule,
        ours: Mapping[int, Mapping[Labels, float]],
        theirs: Mapping[int, Mapping[Labels, float]],
        times: range,
    ) -> None:
        """One rule at all its evaluations, which must be those at which it was judged."""
        if set(ours) != set(times):
            self.differing.append(f"{rule.name} ({rule.where}) was evaluated at other times than asked for")
        for at_ms in times:
            self.evaluations += 1
            here, there = ours.get(at_ms, {}), theirs.get(at_ms, {})
            for labels in {*here, *there}:
                self._value(rule, at_ms, labels, here.get(labels), there.get(labels))

    def _value(self, rule: Rule, at_ms: int, labels: Labels, ours: float | None, theirs: float | None) -> None:
        self.count += 1
        if ours is None or theirs is None or not same(ours, theirs):
            at = (at_ms - BASE_MS) / 1000
            self.differing.append(f"{rule.name} ({rule.where}) at {at:.0f} s {labels}: {ours} here, {theirs} there")
        elif ours != theirs and ours == ours:
            self.inexact += 1


def same(one: float, other: float) -> bool:
    """Equal to one part in a thousand million; NaN equals NaN."""
    if one != one or other != other:
        return one != one and other != other
    return one == other or math.isclose(one, other, rel_tol=CLOSE, abs_tol=0.0)
