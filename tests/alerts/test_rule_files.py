"""Rule files: what Prometheus refuses is refused, with file, line, rule and a remedy; nothing is lost silently."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent.alerts import Target, check_rules, format_duration, load_rules, parse_duration
from agent.errors import ConfigError
from agent.series.selection import SLACK_MS
from tests.alerts.given import METRICS, errors_of, problems_of, rules_of, written
from tests.support.prometheus import program

GOOD = """
groups:
- name: all
  interval: 1m30s
  query_offset: 10s
  limit: 7
  labels: {team: a}
  rules:
  - alert: Hot
    expr: |
      x
        > 1
    for: 5m
    keep_firing_for: 1h
    labels: {severity: warning, n: 1}
    annotations: {summary: s, runbook_url: u}
  - {record: "r:x", expr: sum(x), labels: {team: b, braces: "{{ $value }}"}}
- {name: empty}
"""


def test_every_field_is_read(tmp_path: Path) -> None:
    (group, empty) = rules_of(tmp_path, GOOD).groups
    assert (group.interval_ms, group.query_offset_ms, group.limit) == (90_000, 10_000, 7)
    alert, record = group.rules
    assert (alert.name, alert.record, alert.for_ms, alert.keep_firing_ms) == ("Hot", False, 300_000, 3_600_000)
    assert {name: one.text for name, one in alert.labels.items()} == {"team": "a", "severity": "warning", "n": "1"}
    assert (alert.where, alert.severity) == (f"{tmp_path}/rules.yaml:9", "warning")
    assert {name: one.text for name, one in record.labels.items()} == {"team": "b", "braces": "{{ $value }}"}
    assert empty.rules == ()


def test_a_label_of_a_recording_is_no_template(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD) == ()


def test_an_empty_file_is_no_error(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "") == ()
    assert problems_of(tmp_path, "groups:\n") == ()


# Each with the error that a person gets; the third column says whether promtool 2.42 refuses it as well.
BAD = [
    ("grups: []", "1: unknown key `grups` (did you mean `groups`?)", True),
    ("groups: [{name: a, rulez: []}]", "1: unknown key `rulez` (did you mean `rules`?)", True),
    ("groups:\n- {rules: []}", "2: a group without a name", True),
    ("groups:\n- {name: a}\n- {name: a}", "3: the group `a` stands twice in this file", True),
    ("groups: [{name: a, interval: 5 m}]", "1: `interval`: `5 m` is no duration of Prometheus", True),
    ("groups: [{name: a, interval: 1s1m}]", "1: `interval`: `1s1m` is no duration of Prometheus", True),
    ("groups: [{name: a, limit: some}]", "1: `limit` is a whole number from 0, not `some`", True),
    ("groups: [{name: a, limit: -1}]", "1: `limit` is a whole number from 0, not `-1`", False),
    ("groups: {a: b}", "1: `groups` is a list", True),
    ("- a", "1: the top must be a mapping", True),
    ("groups:\n- name: a\n  rules:\n  - {expr: up}", "4: a rule with neither `record` nor `alert`", True),
    ("RULE {alert: A, record: b, expr: up}", "4: a rule with both `record` and `alert`", True),
    ("RULE {alert: A}", "4: a rule without an expression", True),
    ("RULE {alert: A, expr: up, foor: 5m}", "4: unknown key `foor` (did you mean `for`?)", True),
    ("RULE {alert: A, expr: up, for: 5}", "4: `for`: `5` is no duration of Prometheus", True),
    ("RULE {alert: A, expr: up, keep_firing_for: soon}", "4: `keep_firing_for`: `soon` is no duration", True),
    ("RULE {record: 'a b', expr: up}", "4: `a b` is no name of a metric", True),
    ("RULE {record: 'sum(up)', expr: up}", "4: `sum(up)` is no name of a metric", True),
    ("RULE {record: a, expr: up, for: 5m}", "4: a recording rule has no `for`", True),
    ("RULE {record: a, expr: up, annotations: {x: y}}", "4: a recording rule has no `annotations`", True),
    ("RULE {alert: A, expr: up, labels: {a-b: c}}", "4: `a-b` is no name for one of the labels", True),
    ("RULE {alert: A, expr: up, labels: {__name__: c}}", "4: `__name__` is no name for one of the labels", True),
    ("RULE {alert: A, expr: up, annotations: {a-b: c}}", "4: `a-b` is no name for one of the annotations", True),
    ("RULE {alert: A, expr: up, labels: [a]}", "4: `labels` is a mapping", True),
    ("RULE {alert: A, expr: up, labels: {a: [b]}}", "4: the value of `a` is a text", True),
    ("RULE {alert: A, expr: 'sum('}", "4: the expression: unclosed left parenthesis", True),
    ("RULE {alert: A, expr: 'rate(up)'}", "4: the expression: expected type matrix", True),
    ("RULE {alert: A, expr: 'rte(up[5m])'}", "4: the expression: unknown function `rte` (did you mean `rate`?)", True),
    ("RULE {alert: A, expr: 'up[5m]'}", "4: the expression gives a range vector", False),
    ("RULE {alert: A, expr: '\"x\"'}", "4: the expression gives a text", False),
    (
        "RULE {alert: A, expr: up, annotations: {a: '{{ nope }}'}}",
        "4: the template of `a`: `nope` is not supported",
        True,
    ),
    ("RULE {alert: A, expr: up, labels: {a: '{{ $value'}}", "4: the template of `a`: `{{` is not closed", True),
    ("RULE {alert: A, expr: up, annotations: {a: '{{ query \"up\" }}'}}", "4: the template of `a`: `query`", False),
    ("RULE {alert: A, expr: up, alert: B}", "4: `alert` is given twice", True),
    ("groups:\n- name: a\n\trules: []", "3: found character '\\t'", True),
]


@pytest.mark.parametrize(("text", "error", "_"), BAD, ids=[error for _, error, _ in BAD])
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, error: str, _: bool) -> None:
    text = text.replace("RULE", "groups:\n- name: a\n  rules:\n  -")
    found = errors_of(tmp_path, text)
    assert len(found) == 1, found
    assert found[0].startswith(error)
    for problem in problems_of(tmp_path, text):
        assert problem.remedy


@pytest.mark.parametrize(("text", "_", "refused"), BAD, ids=[error for _, error, _ in BAD])
def test_promtool_refuses_the_same(tmp_path: Path, text: str, _: str, refused: bool) -> None:
    path = written(tmp_path, text.replace("RULE", "groups:\n- name: a\n  rules:\n  -"))
    ran = subprocess.run(
        [program("promtool"), "check", "rules", str(path)], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ran.returncode != 0) is refused, ran.stdout + ran.stderr


def test_what_promtool_takes_is_taken(tmp_path: Path) -> None:
    text = GOOD.replace("  query_offset: 10s\n", "").replace("  labels: {team: a}\n  rules", "  rules")
    path = written(tmp_path, text)
    ran = subprocess.run([program("promtool"), "check", "rules", str(path)], check=False, timeout=30)
    assert ran.returncode == 0
    path = written(tmp_path, GOOD)
    ran = subprocess.run([program("promtool", "3"), "check", "rules", str(path)], check=False, timeout=30)
    assert ran.returncode == 0


def test_all_errors_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    one = written(
        tmp_path, "groups:\n- name: a\n  rules:\n  - {alert: A, expr: 'sum('}\n  - {record: b, for: 5m}", "1.yaml"
    )
    two = written(tmp_path, "groups: [{name: a, interval: x}]", "2.yaml")
    places = [problem.where for problem in check_rules([one, two, tmp_path / "3.yaml"]) if problem.fatal]
    assert places == [f"{one}:4", f"{one}:5", f"{one}:5", f"{two}:1", str(tmp_path / "3.yaml")]
    with pytest.raises(ConfigError, match="and 4 more") as error:
        load_rules([one, two, tmp_path / "3.yaml"])
    assert error.value.remedy


@pytest.mark.parametrize(
    ("expr", "construct"),
    [
        ("info(up)", "info"),
        ("sort_by_label(up, 'a')", "sort_by_label"),
        ("limitk(1, up)", "limitk"),
        ("max_over_time(up[5m:0s])", ""),
    ],
)
def test_a_refused_construct_is_named_with_its_rule(tmp_path: Path, expr: str, construct: str) -> None:
    text = f"groups:\n- name: a\n  rules:\n  - alert: Odd\n    for: 5m\n    expr: {expr}"
    (problem,) = (one for one in problems_of(tmp_path, text) if one.fatal)
    assert (problem.where, problem.rule) == (f"{tmp_path}/rules.yaml:4", "Odd")
    assert construct in problem.message


def test_a_folder_and_a_tree_with_profiles(tmp_path: Path) -> None:
    threshold = (
        "groups: [{name: p, rules: [{record: vllm_agent_threshold, expr: up, labels: {name: t, profile: NAME}}]}]"
    )
    written(tmp_path, "groups: [{name: a, rules: [{alert: A, expr: 'up > vllm_agent_threshold'}]}]", "alerts/a.yaml")
    for name in ("one", "two"):
        written(tmp_path, threshold.replace("NAME", name), f"profiles/{name}.yaml")
    rules = load_rules([tmp_path], profile="two", metrics=METRICS)
    assert (rules.profile, [rule.name for rule in rules.rules]) == ("two", ["vllm_agent_threshold", "A"])
    assert load_rules([tmp_path / "alerts"], profile=str(tmp_path / "profiles" / "one.yaml")).profile == "one"
    with pytest.raises(ConfigError, match=r"no profile `tow` \(did you mean `two`\?\)"):
        load_rules([tmp_path], profile="tow")
    (tmp_path / "alerts" / "a.yaml").unlink()
    with pytest.raises(ConfigError, match="holds no rule files"):
        load_rules([tmp_path])


def test_rules_are_split_by_target(tmp_path: Path) -> None:
    text = """
groups:
- name: a
  rules:
  - {alert: S, expr: vllm:x > 1}
  - {alert: G, expr: vllm_agent_gpu_up == 0}
- {name: b, rules: [{alert: P, expr: process_resident_memory_bytes > 1}]}
"""
    rules = rules_of(tmp_path, text)
    assert [rule.name for rule in rules.for_target("server").rules] == ["S", "P"]
    assert [(g.name, [r.name for r in g.rules]) for g in rules.for_target(Target.AGENT).groups] == [("a", ["G"])]


def test_the_store_is_asked_for_exactly_what_rules_read(tmp_path: Path) -> None:
    text = """
groups:
- name: a
  interval: 60s
  rules:
  - {alert: A, expr: 'rate(vllm:a_total{engine="0"}[15m] offset 5m) > max_over_time(vllm:b[10m:1m])'}
  - {record: "r:c", expr: vllm:c}
  - {alert: B, expr: "max_over_time(r:c[24h]) > 1"}
"""
    selection = rules_of(tmp_path, text).selection()
    minute, lookback = 60_000, 300_000

    def kept(name: str, **labels: str) -> int | None:
        return selection.kept_ms(tuple(sorted({"__name__": name, **labels}.items())))

    assert kept("vllm:a_total", engine="0") == 20 * minute + SLACK_MS, "a range sees nothing before it"
    assert kept("vllm:a_total", engine="1") is None
    assert kept("vllm:b") == 10 * minute + lookback
    assert kept("vllm:c") == lookback
    assert kept("r:c") == 24 * 60 * minute + lookback
    assert kept("up") == 20 * minute + lookback, "scrapes are counted to know whether a window is filled"
    assert kept("vllm:d") is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0", 0), ("1ms", 1), ("90s", 90_000), ("1h30m", 5_400_000), ("1d", 86_400_000), ("1w2d3h", 788_400_000)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize("text", ["", "1", "m", "-1m", "1.5h", "1m1h", "1m1m", " 1m", "1m ", "1m\n", "300000y"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|long"):
        parse_duration(text)
