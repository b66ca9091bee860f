"""A restart of the agent: clocks go on, nothing is told twice, what ended meanwhile is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.alerts import Judge
from agent.errors import AgentError
from agent.series import Store
from tests.alerts.given import everything, judge_of, put, rules_of, told

MINUTE = 60_000
START = 1_700_000_000_000
RULES = """
groups:
- name: g
  rules:
  - alert: Hot
    expr: x > 1
    for: 5m
    labels: {severity: warning}
    annotations: {summary: "at {{ $value }}"}
  - {alert: Now, expr: x > 5}
  - {alert: Rate, expr: "rate(y[5m]) > 0.1"}
"""


def _tick(judge: Judge, at: int, **values: float) -> list[str]:
    store = judge._store
    assert isinstance(store, Store)
    put(store, at, "up", 1)
    for name, value in values.items():
        put(store, at, name, value)
    return told(judge.evaluate(at))


def _again(folder: Path, judge: Judge, text: str = RULES, **options: bool) -> Judge:
    """A new process: an empty store, and what the last one wrote."""
    plain: dict[str, Any] = json.loads(json.dumps(judge.dump()))
    fresh = judge_of(folder, text, everything())
    fresh.restore(plain, **options)
    return fresh


def test_what_fires_is_not_told_again(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    assert _tick(judge, START, x=9) == ["firing Now", "pending Hot"]
    before = {alert.name: alert for alert in judge.alerts()}
    fresh = _again(tmp_path, judge)
    assert _tick(fresh, START + 2000, x=9) == []
    after = {alert.name: alert for alert in fresh.alerts()}
    assert after["Now"].starts_at == before["Now"].starts_at
    assert after["Now"].state == before["Now"].state


def test_the_clock_of_for_stands_still_while_the_agent_is_away(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=2)
    _tick(judge, START + 2 * MINUTE, x=2)
    fresh = _again(tmp_path, judge)
    back = START + 12 * MINUTE
    assert _tick(fresh, back, x=2) == []
    assert _tick(fresh, back + 3 * MINUTE - 1000, x=2) == []
    assert _tick(fresh, back + 3 * MINUTE, x=2) == ["firing Hot"]


def test_after_a_longer_absence_nothing_fires_in_the_first_minute(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=2)
    _tick(judge, START + 5 * MINUTE - 1000, x=2)
    fresh = _again(tmp_path, judge)
    back = START + 15 * MINUTE
    assert [_tick(fresh, back + s * 1000, x=2) for s in (0, 59, 60)] == [[], [], ["firing Hot"]]


def test_a_short_restart_costs_no_more_than_it_took(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=2)
    _tick(judge, START + 5 * MINUTE - 1000, x=2)
    fresh = _again(tmp_path, judge)
    back = START + 5 * MINUTE + 1000
    assert [_tick(fresh, back + s * 1000, x=2) for s in (0, 1, 2)] == [[], [], ["firing Hot"]]


def test_after_more_than_an_hour_a_pending_alert_starts_anew(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=2)
    fresh = _again(tmp_path, judge)
    assert _tick(fresh, START + 61 * MINUTE, x=2) == ["pending Hot"]


def test_what_ended_meanwhile_is_told_once_with_its_texts(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    for minute in range(6):
        _tick(judge, START + minute * MINUTE, x=3)
    assert judge.alerts()[0].state.value == "firing"
    fresh = _again(tmp_path, judge)
    assert _tick(fresh, START + 6 * MINUTE, x=0, y=0) == ["resolved Hot"]
    (ended,) = fresh.resolved()
    assert ended.annotations["summary"] == "at 3"
    third = _again(tmp_path, fresh)
    assert _tick(third, START + 7 * MINUTE, x=0) == []
    assert len(third.resolved()) == 1, "it is still there for receivers that hear it more than once"


def test_a_window_that_is_not_filled_yet_ends_nothing(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, y=0)
    assert _tick(judge, START + 10_000, y=100) == ["firing Rate"]
    fresh = _again(tmp_path, judge)
    assert _tick(fresh, START + 20_000, y=200) == []
    assert [alert.name for alert in fresh.alerts()] == ["Rate"]
    assert _tick(fresh, START + 30_000, y=300) == []
    assert _tick(fresh, START + 40_000, y=300) == []
    second = _again(tmp_path, judge)
    assert _tick(second, START + 20_000, y=200) == []
    assert _tick(second, START + 30_000, y=200) == ["resolved Rate"], "two scrapes judge it"


def test_what_cannot_be_judged_is_not_held_for_ever(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, y=0)
    assert _tick(judge, START + 10_000, y=100) == ["firing Rate"]
    fresh = _again(tmp_path, judge)
    assert _tick(fresh, START + 20_000) == []
    assert _tick(fresh, START + 9 * MINUTE) == []
    assert _tick(fresh, START + 11 * MINUTE) == ["resolved Rate"]


def test_an_alert_whose_rule_is_gone_ends(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=9)
    fresh = _again(tmp_path, judge, "groups: [{name: g, rules: [{alert: Other, expr: x > 1}]}]")
    assert _tick(fresh, START + 1000, x=0) == ["resolved Now"], "a pending alert that was never told ends silently"
    assert _tick(fresh, START + 2000, x=0) == []


def test_a_second_restart_before_the_first_evaluation_loses_nothing(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=9)
    _tick(judge, START + 2 * MINUTE, x=9)
    second = _again(tmp_path, _again(tmp_path, judge))
    back = START + 10 * MINUTE
    assert [_tick(second, back + m * MINUTE, x=9) for m in (0, 2, 3)] == [[], [], ["firing Hot"]]
    other = "groups: [{name: g, rules: [{alert: Other, expr: x > 1}]}]"
    gone = _again(tmp_path, _again(tmp_path, judge, other), other)
    assert _tick(gone, back, x=0) == ["resolved Now"]


def test_waiting_for_a_window_is_not_waiting_for_an_alert(tmp_path: Path) -> None:
    text = "groups: [{name: g, rules: [{alert: R, expr: 'rate(y[5m]) > 0.1', for: 5m}]}]"
    judge = judge_of(tmp_path, text, everything())
    for minute in range(4):
        _tick(judge, START + minute * MINUTE, y=minute * 1000)
    first = _again(tmp_path, judge, text)
    assert _tick(first, START + 6 * MINUTE, y=7000) == []
    second = _again(tmp_path, first, text)
    heard = [_tick(second, START + minute * MINUTE, y=minute * 1000) for minute in (7, 8, 9, 10, 11)]
    assert heard == [[], [], [], [], ["firing R"]], "2 of 5 minutes were waited before, 3 after"


def test_rules_read_anew_change_no_clock(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    _tick(judge, START, x=2)
    fresh = _again(tmp_path, judge, RULES.replace("x > 1", "x > 0"), continued=True)
    assert _tick(fresh, START + 4 * MINUTE, x=2) == []
    assert _tick(fresh, START + 5 * MINUTE, x=2) == ["firing Hot"]


def test_what_cannot_be_read_is_refused_with_a_remedy(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULES, everything())
    for broken in ({}, {"v": 2, "at_ms": 0, "rules": {}}, {"v": 1, "at_ms": 0, "rules": {"a": [{"labels": 1}]}}):
        with pytest.raises(AgentError, match="cannot be read"):
            judge.restore(broken)


def test_numbers_that_json_lacks_survive(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, "groups: [{name: g, rules: [{alert: Odd, expr: x != 0}]}]", everything())
    _tick(judge, START, x=float("inf"))
    plain = json.loads(json.dumps(judge.dump(), allow_nan=False))
    fresh = judge_of(tmp_path, "groups: [{name: g, rules: [{alert: Odd, expr: x != 0}]}]", everything())
    fresh.restore(plain)
    assert fresh.alerts()[0].value == float("inf")
    assert rules_of(tmp_path, RULES).rules
