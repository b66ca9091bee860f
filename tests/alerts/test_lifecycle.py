"""Alerts through time: pending, firing, kept, resolved, as Prometheus 3 has it."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.alerts import Judge, load_rules
from agent.alerts.lifecycle import Active, Alerting, State
from agent.model import AlertState, parse_rfc3339
from agent.series import STALE, Store
from agent.series.promql import Element
from tests.alerts.given import everything, judge_of, put, rules_of, told
from tests.support.prometheus import VERSIONS, program

STEP = 15_000
RULE = """
groups:
- name: g
  rules:
  - alert: Hot
    expr: x > 1
    for: {hold}
    keep_firing_for: {keep}
    labels: {{severity: warning}}
    annotations: {{summary: "{{{{ $labels.i }}}} is at {{{{ $value }}}}"}}
"""


def _run(judge: Judge, values: Sequence[float], start: int = 0) -> list[list[str]]:
    """What each evaluation told, with one sample before each."""
    store = judge._store
    assert isinstance(store, Store)
    heard = []
    for index, value in enumerate(values):
        at = (start + index) * STEP
        put(store, at, "x", value, i="0")
        heard.append(told(judge.evaluate(at)))
    return heard


def test_without_for_it_fires_at_once(tmp_path: Path) -> None:
    heard = _run(judge_of(tmp_path, RULE.format(hold="0s", keep="0s"), everything()), [0, 2, 2, 0, 0])
    assert heard == [[], ["firing Hot 0"], [], ["resolved Hot 0"], []]


def test_for_is_waited_and_a_break_starts_it_anew(tmp_path: Path) -> None:
    heard = _run(judge_of(tmp_path, RULE.format(hold="30s", keep="0s"), everything()), [2, 2, 0, 2, 2, 2, 2])
    assert heard == [["pending Hot 0"], [], [], ["pending Hot 0"], [], ["firing Hot 0"], []]


def test_keep_firing_for_bridges_a_gap(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULE.format(hold="0s", keep="30s"), everything())
    assert _run(judge, [2, 0, 2, 0, 0, 0]) == [["firing Hot 0"], [], [], [], [], ["resolved Hot 0"]]


def test_an_alert_says_when_it_began_fired_and_ended(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULE.format(hold="15s", keep="0s"), everything())
    _run(judge, [0, 2, 3])
    (alert,) = judge.alerts()
    assert (alert.state, alert.value, alert.server) == (AlertState.FIRING, 3.0, "a")
    assert (alert.active_at, alert.starts_at, alert.ends_at) == (
        "1970-01-01T00:00:15.000Z",
        "1970-01-01T00:00:30.000Z",
        None,
    )
    assert alert.labels == {"alertname": "Hot", "i": "0", "severity": "warning"}
    _run(judge, [0], start=3)
    assert judge.alerts() == ()
    (ended,) = judge.resolved()
    assert (ended.state, ended.ends_at) == (AlertState.RESOLVED, "1970-01-01T00:00:45.000Z")
    assert ended.annotations == {"summary": "0 is at 3"}, "the texts are those of the last time that it held"


def test_what_ended_is_remembered_for_fifteen_minutes(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULE.format(hold="0s", keep="0s"), everything())
    _run(judge, [2, 0])
    judge.evaluate(STEP + 900_000)
    assert len(judge.resolved()) == 1
    judge.evaluate(STEP + 900_001)
    assert judge.resolved() == ()


def test_an_alert_that_comes_back_is_a_new_one(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, RULE.format(hold="0s", keep="0s"), everything())
    assert _run(judge, [2, 0, 2]) == [["firing Hot 0"], ["resolved Hot 0"], ["firing Hot 0"]]
    assert judge.alerts()[0].active_at == "1970-01-01T00:00:30.000Z"
    assert judge.resolved() == ()


def test_labels_of_rule_and_group_go_over_those_of_the_series(tmp_path: Path) -> None:
    store = everything()
    text = """
groups:
- name: g
  labels: {team: a, tier: g}
  rules:
  - {alert: Hot, expr: x > 1, labels: {team: b, i: "was {{ $labels.i }}", alertname: no, gone: ""}}
"""
    judge = judge_of(tmp_path, text, store)
    put(store, 0, "x", 2, i="0", team="c", gone="c")
    (alert,) = judge.evaluate(0)
    assert alert.labels == {"alertname": "Hot", "team": "b", "tier": "g", "i": "was 0"}


def test_two_elements_of_one_label_set_are_an_error_and_change_nothing(tmp_path: Path) -> None:
    store = everything()
    judge = judge_of(tmp_path, "groups: [{name: g, rules: [{alert: Hot, expr: x > 1, labels: {i: one}}]}]", store)
    put(store, 0, "x", 2, i="0")
    assert told(judge.evaluate(0)) == ["firing Hot one"]
    put(store, STEP, "x", 2, i="0")
    put(store, STEP, "x", 2, i="1")
    assert judge.evaluate(STEP) == ()
    (status,) = judge.statuses()
    assert (status.health, status.state) == ("err", "firing")
    assert status.error == "vector contains metrics with the same labelset after applying alert labels"


def test_a_failing_rule_stops_no_other(tmp_path: Path) -> None:
    store = everything()
    text = """
groups:
- name: g
  rules:
  - {alert: Broken, expr: x * ignoring (i) x > 1}
  - {record: "r:x", expr: x}
  - {alert: Hot, expr: "r:x > 1"}
"""
    judge = judge_of(tmp_path, text, store)
    for index in "01":
        put(store, 0, "x", 2, i=index)
    assert told(judge.evaluate(0)) == ["firing Hot 0", "firing Hot 1"]
    broken, *others = judge.statuses()
    assert broken.health == "err" and "many-to-many" in (broken.error or "")
    assert [one.health for one in others] == ["ok", "ok"]
    assert others[0].seconds > 0 and others[0].evaluated_at == 0 and others[0].value == 2


def test_above_the_limit_all_alerts_are_given_up(tmp_path: Path) -> None:
    store = everything()
    judge = judge_of(tmp_path, "groups: [{name: g, limit: 1, rules: [{alert: Hot, expr: x > 1}]}]", store)
    put(store, 0, "x", 2, i="0")
    assert told(judge.evaluate(0)) == ["firing Hot 0"]
    put(store, STEP, "x", 2, i="0")
    put(store, STEP, "x", 2, i="1")
    assert told(judge.evaluate(STEP)) == ["resolved Hot 0"], "what was told as firing ends"
    assert judge.statuses()[0].error == "exceeded limit of 1 with 2 alerts"
    assert judge.alerts() == ()


def test_recordings_run_in_order_and_end_when_their_source_does(tmp_path: Path) -> None:
    store = everything()
    text = """
groups:
- name: g
  rules:
  - {record: "r:x", expr: x > 1, labels: {made: here}}
  - {record: "r:y", expr: "2 * r:x"}
  - {record: "r:n", expr: "3"}
  - {alert: Gone, expr: absent(r:y)}
"""
    judge = judge_of(tmp_path, text, store)
    put(store, 0, "x", 2, i="0")
    assert judge.evaluate(0) == ()
    found = {dict(series.labels)["__name__"]: series for series in store if dict(series.labels).get("made")}
    assert list(found["r:y"].values) == [4.0]
    assert [list(one.values) for one in store if dict(one.labels) == {"__name__": "r:n"}] == [[3.0]]
    put(store, STEP, "x", 0, i="0")
    assert told(judge.evaluate(STEP)) == ["firing Gone"], "no lookback of five minutes: the recording ended"


def test_a_recording_that_failed_ends_nothing(tmp_path: Path) -> None:
    store = everything()
    text = """
groups:
- name: g
  rules:
  - {record: "r:x", expr: "x * on () group_left () y"}
  - {alert: Seen, expr: "r:x > 0"}
"""
    judge = judge_of(tmp_path, text, store)
    put(store, 0, "x", 2)
    put(store, 0, "y", 2, j="0")
    assert told(judge.evaluate(0)) == ["firing Seen"]
    put(store, STEP, "y", 2, j="1")
    assert judge.evaluate(STEP) == ()
    assert judge.statuses()[0].health == "err"


def test_groups_have_their_interval(tmp_path: Path) -> None:
    store = everything()
    text = """
groups:
- {name: slow, interval: 60s, rules: [{alert: Slow, expr: x > 1}]}
- {name: fast, rules: [{alert: Fast, expr: x > 1}]}
"""
    judge = judge_of(tmp_path, text, store)
    evaluated = []
    for at in (*range(0, 59_000, 1000), 59_900, 61_000, 119_000, 119_950):
        put(store, at, "x", 2)
        judge.evaluate(at)
        slow, fast = judge.statuses()
        assert fast.evaluated_at == at
        evaluated.append(slow.evaluated_at)
    assert sorted({at for at in evaluated if at is not None}) == [0, 59_900, 119_950], (
        "a tick a little early counts, and none is made up for"
    )


def test_a_query_offset_moves_what_is_read_and_written(tmp_path: Path) -> None:
    store = everything()
    judge = judge_of(tmp_path, 'groups: [{name: g, query_offset: 30s, rules: [{record: "r:x", expr: x > 0}]}]', store)
    for index, value in enumerate((1, 2, 3)):
        put(store, index * STEP, "x", value)
    judge.evaluate(2 * STEP)
    (series,) = (one for one in store if dict(one.labels)["__name__"] == "r:x")
    assert (list(series.times), list(series.values)) == ([0], [1.0])


def test_alerts_are_series_when_a_rule_reads_them(tmp_path: Path) -> None:
    store = everything()
    text = """
groups:
- name: g
  rules:
  - {alert: Hot, expr: x > 1, for: 15s, labels: {severity: info}}
  - {alert: Fires, expr: 'ALERTS{alertname="Hot", alertstate="firing"} == 1 and ignoring (alertstate) ALERTS_FOR_STATE'}
"""
    judge = judge_of(tmp_path, text, store)
    assert _run(judge, [2, 2, 0]) == [
        ["pending Hot 0"],
        ["firing Fires 0", "firing Hot 0"],
        ["resolved Fires 0", "resolved Hot 0"],
    ]


def test_a_clock_that_is_set_back_costs_no_waiting(tmp_path: Path) -> None:
    store = everything()
    judge = judge_of(tmp_path, RULE.format(hold="45s", keep="0s"), store)
    heard = []
    for at in (15_000_000, 15_015_000, 15_030_000, 600_000, 615_000):
        store.record("x", [((("__name__", "x"), ("i", "0")), 2.0)], at_ms=at)
        heard.append(told(judge.evaluate(at)))
    assert heard == [["pending Hot 0"], [], [], [], ["firing Hot 0"]]


# Against a model of its own


class _Model:
    """The lifecycle of one label set, told as a story: runs of evaluations at which the condition held or not."""

    def __init__(self, hold: int, keep: int) -> None:
        self.hold, self.keep = hold, keep
        self.truth: list[bool] = []

    def state(self) -> str:
        """From the whole past, without a state of its own."""
        state, since, gone = "inactive", 0, None
        for now, holds in enumerate(self.truth):
            if holds:
                gone = None
                since = now if state == "inactive" else since
                state = "firing" if state == "firing" or now - since >= self.hold else "pending"
            elif state == "firing":
                gone = now if gone is None else gone
                state = "firing" if now - gone < self.keep else "inactive"
            else:
                state = "inactive"
        return state


@settings(max_examples=150, deadline=None)
@given(
    hold=st.integers(0, 4),
    keep=st.integers(0, 4),
    story=st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=25),
)
def test_states_equal_those_of_an_independent_model(
    tmp_path_factory: pytest.TempPathFactory, hold: int, keep: int, story: list[list[bool]]
) -> None:
    text = RULE.format(hold=f"{hold}s", keep=f"{keep}s")
    (rule,) = rules_of(tmp_path_factory.mktemp("r"), text).rules
    alerting, models = Alerting(rule), [_Model(hold, keep), _Model(hold, keep)]
    before = ["inactive", "inactive"]
    for now, truths in enumerate(story):
        vector = [Element((("i", str(i)),), 2.0) for i, holds in enumerate(truths) if holds]
        changed = {dict(one.labels)["i"]: one for one in alerting.evaluate(vector, now * 1000)}
        for index, (model, holds) in enumerate(zip(models, truths, strict=True)):
            model.truth.append(holds)
            state = model.state()
            assert _state(alerting, index) == state
            told_now = changed[str(index)].state.value if str(index) in changed else None
            expected = state if state != before[index] else None
            if state == "inactive" and before[index] == "pending":
                expected = None
            assert told_now == expected
            before[index] = state


def _state(alerting: Alerting, index: int) -> str:
    found: list[Active] = [one for one in alerting.active.values() if dict(one.labels)["i"] == str(index)]
    return found[0].state.value if found else State.INACTIVE.value


# Against promtool


@pytest.mark.parametrize("version", VERSIONS)
def test_states_equal_those_of_promtool(tmp_path: Path, version: str) -> None:
    promtool = program("promtool", version)
    draw = random.Random(3)
    holds = [("0s", "0s"), ("30s", "0s"), ("0s", "45s"), ("45s", "30s"), ("1m", "1m")]
    rules = [
        {
            "alert": f"A{n}",
            "expr": f"x > {draw.choice([0, 1])}",
            "for": hold,
            "keep_firing_for": keep,
            "labels": {"severity": "info"},
        }
        for n, (hold, keep) in enumerate(holds)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    steps = 60
    series = {str(i): [draw.choice([0, 1, 2, 2, None, "stale"]) for _ in range(steps)] for i in range(4)}
    cases = _expected(path, series, steps)
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": f'x{{i="{i}"}}', "values": " ".join("_" if v is None else str(v) for v in values)}
                    for i, values in series.items()
                ],
                "promql_expr_test": cases,
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    ran = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[:4000]
    assert sum(len(samples) for case in cases if isinstance(samples := case["exp_samples"], list)) > 200


def _expected(path: Path, series: Mapping[str, Sequence[int | str | None]], steps: int) -> list[dict[str, object]]:
    """What the judge has at every evaluation, as promtool asks for ``ALERTS``."""
    store = everything()
    judge = Judge(load_rules([path]), store, server="a")
    cases: list[dict[str, object]] = []
    for step in range(steps):
        for i, values in series.items():
            value = values[step]
            if value is not None:
                put(store, step * STEP, "x", STALE if value == "stale" else float(value), i=i)
        judge.evaluate(step * STEP)
        when = f"{step * 15}s"
        states = [(_series("ALERTS", {**one.labels, "alertstate": one.state.value}), 1.0) for one in judge.alerts()]
        since = [
            (_series("ALERTS_FOR_STATE", one.labels), parse_rfc3339(one.active_at).timestamp())
            for one in judge.alerts()
        ]
        for name, samples in (("ALERTS", states), ("ALERTS_FOR_STATE", since)):
            expected = [{"labels": labels, "value": sample} for labels, sample in samples]
            cases.append({"expr": name, "eval_time": when, "exp_samples": expected})
    return cases


def _series(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in labels.items())}}}"
