"""Every shipped rule says what Prometheus 3 says, and the comparison notices where it would not.

The short form: an hour and a quarter of every fault at 15 s, one profile. All profiles, all steps, and a whole day
are in tests/real/test_differential.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.alerts import Rule, RuleSet, load_rules
from tests.differential.compare import Values, differential, same
from tests.differential.scenes import Scene

pytestmark = pytest.mark.timeout(300)
LASTS_A_DAY = {"VLLMAgentOverrideInForce", "VLLMRequestRateDropped"}


def test_an_hour_of_faults_at_fifteen_seconds(tmp_path: Path) -> None:
    scene = Scene("hour-15s", 15, 4_500)
    outcome = differential(scene, scene.targets(), "guide-moe", tmp_path)
    assert outcome.differing == ()
    alerts = {rule.name for rule in load_rules(profile="guide-moe").rules if not rule.record}
    assert {name for name in alerts if "firing" not in outcome.told.get(name, ())} == LASTS_A_DAY


def changed(name: str, for_ms: int, keep_ms: int) -> Callable[[RuleSet], RuleSet]:
    def one(rule: Rule) -> Rule:
        return dataclasses.replace(rule, for_ms=for_ms, keep_firing_ms=keep_ms) if rule.name == name else rule

    def change(rules: RuleSet) -> RuleSet:
        groups = (dataclasses.replace(group, rules=tuple(map(one, group.rules))) for group in rules.groups)
        return dataclasses.replace(rules, groups=tuple(groups))

    return change


@pytest.mark.parametrize(
    ("name", "for_ms", "keep_ms"),
    [("VLLMQueueLong", 360_000, 0), ("VLLMServerStalled", 0, 0), ("VLLMAgentBreakerOpen", 60_000, 0)],
)
def test_a_rule_that_fires_or_ends_a_minute_off_is_noticed(
    name: str, for_ms: int, keep_ms: int, tmp_path: Path
) -> None:
    scene = Scene("hour-60s", 60, 4_500)
    outcome = differential(scene, scene.targets(), "guide-moe", tmp_path, changed(name, for_ms, keep_ms))
    assert outcome.differing
    assert all(name in said for said in outcome.differing)


def test_a_series_that_does_not_end_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.series.store.STALE", math.nan)
    scene = Scene("hour-60s", 60, 4_500)
    outcome = differential(scene, scene.targets(), "guide-moe", tmp_path)
    assert any("ALERTS at" in said for said in outcome.differing)
    assert any("there" in said and "VLLM" in said and " at " in said for said in outcome.differing)


def test_a_value_that_is_a_little_off_and_an_evaluation_too_few_are_noticed() -> None:
    rule = next(load_rules(profile="guide-moe").rules)
    labels = (("a", "b"),)
    values = Values()
    values.compare(rule, {0: {labels: 1.0}, 5: {}}, {0: {labels: 1.0 + 1e-8}}, range(0, 6, 5))
    values.compare(rule, {0: {labels: 1.0}}, {0: {labels: 1.0}}, range(0, 6, 5))
    assert len(values.differing) == 2


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-8, False),
        (0.0, 1e-300, False),
        (math.nan, math.nan, True),
        (math.nan, 0.0, False),
        (math.inf, math.inf, True),
        (math.inf, 1e308, False),
    ],
)
def test_what_counts_as_equal(one: float, other: float, equal: bool) -> None:
    assert same(one, other) is equal
