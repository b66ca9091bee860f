"""What must hold among rules: one target per expression, one profile per target, names and windows that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.alerts import check_rules, profiles
from tests.alerts.given import errors_of, problems_of, rules_of

HEAD = "groups:\n- name: a\n  interval: 60s\n  rules:\n"


def _rules(*lines: str) -> str:
    return HEAD + "\n".join(f"  - {line}" for line in lines)


def _threshold(name: str, expr: str, profile: str = "p") -> str:
    return f"{{record: vllm_agent_threshold, expr: '{expr}', labels: {{name: {name}, profile: {profile}}}}}"


@pytest.mark.parametrize(
    "lines",
    [
        ["{alert: A, expr: vllm:x > on () vllm_agent_gpu_up}"],
        ["{alert: A, expr: http_requests_total and on () vllm_agent_gpu_up}"],
        ["{alert: A, expr: process_open_fds or vllm_agent_gpu_up}"],
        ["{alert: A, expr: python_info unless on () vllm_agent_gpu_up}"],
        ['{alert: A, expr: \'label_replace(sum(rate(vllm:x[5m])), "a", "$1", "b", "(.*)") / vllm_agent_gpu_up\'}'],
        ["{alert: A, expr: absent(vllm_agent_gpu_up) and on () up == 1}"],
        ["{alert: A, expr: 'vllm:x * on () max_over_time(vllm_agent_gpu_up[5m:1m])'}"],
        ["{alert: A, expr: 'vllm:x * on () {__name__=\"vllm_agent_gpu_up\"}'}"],
        ["{alert: A, expr: 'vllm:x * on () {__name__=~\"vllm_agent_gpu.*\"}'}"],
        ["{record: 'r:g', expr: vllm_agent_gpu_up}", "{alert: A, expr: vllm:x > on () r:g}"],
        [
            "{alert: A, expr: vllm:x > on () r:c}",
            "{record: 'r:c', expr: r:b * 2}",
            "{record: 'r:b', expr: sum(r:a)}",
            "{record: 'r:a', expr: vllm_agent_gpu_up}",
        ],
        ["{record: 'r:g', expr: vllm_agent_gpu_up + on () vllm:x}"],
        ["{alert: A, expr: '{job=\"vllm\"} > 1'}"],
    ],
)
def test_series_of_two_targets_are_not_joined(tmp_path: Path, lines: list[str]) -> None:
    errors = errors_of(tmp_path, _rules(*lines))
    assert errors and all("joins" in error for error in errors), errors
    assert any("exported by the agent" in error for error in errors)


def test_the_way_to_the_other_target_is_told(tmp_path: Path) -> None:
    lines = [
        "{record: 'r:a', expr: vllm_agent_gpu_up}",
        "{record: 'r:b', expr: r:a * 2}",
        "{alert: A, expr: vllm:x > on () r:b}",
    ]
    (error,) = errors_of(tmp_path, _rules(*lines))
    assert error == (
        "7: joins `vllm:x` (exported by the server) with "
        "`r:b`, recorded from `r:a`, recorded from `vllm_agent_gpu_up` (exported by the agent)"
    )


@pytest.mark.parametrize(
    ("lines", "targets"),
    [
        (["{alert: A, expr: vllm:x > 1}"], ["server"]),
        (["{alert: A, expr: vllm_agent_gpu_up == 0}"], ["agent"]),
        (["{alert: A, expr: vector(1)}"], ["server"]),
        (["{alert: A, expr: custom_metric > 1}"], ["server"]),
        (["{record: 'r:a', expr: vllm_agent_gpu_up}", "{alert: A, expr: r:a > 1}"], ["agent", "agent"]),
        (["{record: 'r:a', expr: r:a + vllm_agent_gpu_up}"], ["agent"]),
        (
            [
                _threshold("s", "group(vllm:x)"),
                _threshold("g", "group(vllm_agent_gpu_up)", "q"),
                "{alert: A, expr: 'vllm_agent_threshold{name=\"g\"} > 5'}",
            ],
            ["server", "agent", "agent"],
        ),
        (
            [
                _threshold("g", "group(vllm_agent_gpu_up)"),
                "{alert: A, expr: 'vllm_agent_gpu_up < on () vllm_agent_threshold{name=\"g\"}'}",
            ],
            ["agent", "agent"],
        ),
    ],
)
def test_every_rule_has_one_target(tmp_path: Path, lines: list[str], targets: list[str]) -> None:
    assert [rule.target.value for rule in rules_of(tmp_path, _rules(*lines)).rules] == targets


def test_two_profiles_of_one_target_are_refused(tmp_path: Path) -> None:
    lines = [_threshold("t", "group(vllm:x)", "p"), _threshold("u", "group(vllm:x)", "q")]
    (error,) = errors_of(tmp_path, _rules(*lines))
    assert error.startswith("6: a second profile `q` for the target that `p`")
    one_each = [_threshold("t", "group(vllm:x)", "p"), _threshold("u", "group(vllm_agent_gpu_up)", "q")]
    assert errors_of(tmp_path, _rules(*one_each)) == []


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["{alert: A, expr: 'vllm:x > vllm_agent_threshold{name=\"t\"}'}"], "threshold `t`, and no profile is loaded"),
        (
            [_threshold("ttft", "group(vllm:x)"), "{alert: A, expr: 'vllm:x > vllm_agent_threshold{name=\"tftt\"}'}"],
            "does not record (did you mean `ttft`?)",
        ),
        (
            [
                _threshold("t", "group(vllm_agent_gpu_up)"),
                "{alert: A, expr: 'vllm:x > vllm_agent_threshold{name=\"t\"}'}",
            ],
            "recorded from series of the other target",
        ),
        (["{record: vllm_agent_threshold, expr: up, labels: {profile: p}}"], "a threshold without the label `name`"),
        (["{record: vllm_agent_threshold, expr: up, labels: {name: p}}"], "a threshold without the label `profile`"),
        (["{alert: A, expr: 'rate(vllm:x[7h]) > 1'}"], "reads `vllm:x` further back than 6h"),
        (["{alert: A, expr: 'rate(vllm:x[5m] offset 1d) > 1'}"], "reads `vllm:x` further back than 6h"),
        (["{alert: A, expr: 'max_over_time(rate(vllm:x[5m])[1d:1m]) > 1'}"], "reads `vllm:x` further back than 6h"),
        (["{alert: A, expr: 'vllm:x @ 1700000000 > 1'}"], "reads at a fixed time"),
        (["{alert: A, expr: vllm_agent_gpu_upp > 1}"], "is no metric of the agent (did you mean `vllm_agent_gpu_up`?)"),
        (["{alert: A, expr: up > 1}", "{alert: A, expr: up > 2}"], "the same rule with the same labels stands at"),
    ],
)
def test_what_cannot_hold_is_refused(tmp_path: Path, lines: list[str], error: str) -> None:
    errors = errors_of(tmp_path, _rules(*lines))
    assert len(errors) == 1 and error in errors[0], errors


@pytest.mark.parametrize(
    "lines",
    [
        ["{alert: A, expr: 'rate(vllm:x[6h]) > 1'}"],
        ["{record: 'r:x', expr: sum(vllm:x)}", "{alert: A, expr: 'max_over_time(r:x[1d]) > 1'}"],
        ["{alert: A, expr: 'rate(vllm_agent_repair_seconds_bucket[5m]) > 1'}"],
        ["{record: vllm_agent_own:sum, expr: sum(vllm_agent_gpu_up)}", "{alert: A, expr: vllm_agent_own:sum > 1}"],
        ["{alert: A, expr: up > 1, labels: {a: b}}", "{alert: A, expr: up > 2}"],
        [_threshold("t", "group(vllm:x)"), "{alert: A, expr: 'vllm:x > vllm_agent_threshold{name=~\"t|u\"}'}"],
    ],
)
def test_what_holds_is_taken(tmp_path: Path, lines: list[str]) -> None:
    assert errors_of(tmp_path, _rules(*lines)) == []


def test_a_long_window_wants_a_slow_recording(tmp_path: Path) -> None:
    lines = ["{record: 'r:x', expr: sum(vllm:x)}", "{alert: A, expr: 'max_over_time(r:x[1d]) > 1'}"]
    (error,) = errors_of(tmp_path, _rules(*lines).replace("interval: 60s", "interval: 15s"))
    assert "reads `r:x` further back than 6h" in error


def test_what_people_need_is_only_a_warning(tmp_path: Path) -> None:
    text = _rules("{alert: A, expr: up == 0}", "{alert: B, expr: up == 0, labels: {severity: page}}")
    problems = problems_of(tmp_path, text)
    assert not any(problem.fatal for problem in problems)
    assert [problem.message for problem in problems if problem.rule == "A"] == [
        "an alert without a severity",
        "an alert without the annotation `summary`",
        "an alert without the annotation `runbook_url`",
    ]
    assert "the severity `page` is not known" in [problem.message for problem in problems if problem.rule == "B"]


@pytest.mark.parametrize("profile", profiles())
def test_the_shipped_rules_have_no_problem_with_any_profile(profile: str) -> None:
    assert check_rules(profile=profile) == ()
