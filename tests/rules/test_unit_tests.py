"""`agent rules test` says of a test file what promtool says of it: the shipped ones, broken ones, and odd ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from agent.alerts import run_test_file
from agent.alerts.notation import NotationError, read_series, read_values
from agent.cli.rules import rules
from agent.errors import ConfigError
from agent.series import STALE, is_stale
from tests.rules.pack import ROOT, RULES, TESTS, each_prometheus, failed_cases, promtool

MOVED = [file for file in TESTS if file.stem in ("errors", "latency", "queue", "kv-cache", "host", "gpu-health")]


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_the_shipped_unit_tests_hold_in_process(file: Path) -> None:
    outcome = run_test_file(file)
    assert [failure.text for failure in outcome.failures] == []
    assert outcome.passed > 0


def moved(file: Path, folder: Path, seconds: int) -> Path:
    """The same tests with every case asked that much later or earlier, so that some of them fail."""
    document = yaml.safe_load(file.read_text())
    document["rule_files"] = [str((file.parent / name).resolve()) for name in document["rule_files"]]
    for group in document["tests"]:
        for case in group["alert_rule_test"]:
            case["eval_time"] = f"{max(0, _seconds(case['eval_time']) + seconds)}s"
    path = folder / f"{file.stem}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _seconds(text: str) -> int:
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    total, number = 0, ""
    for sign in text:
        if sign.isdigit():
            number += sign
        else:
            total, number = total + int(number) * units[sign], ""
    return total


@each_prometheus
def test_the_same_cases_fail_as_with_promtool(version: str, tmp_path: Path) -> None:
    seconds = {"2": -173, "3": 187}[version]
    failed = 0
    for file in MOVED:
        path = moved(file, tmp_path, seconds)
        _, text = promtool(version, "test", "rules", str(path))
        ours = "\n".join(failure.text for failure in run_test_file(path).failures)
        assert failed_cases(ours) == failed_cases(text), file.stem
        failed += len(failed_cases(ours))
    assert failed > 5, "nothing was put to the test"


ODD = ROOT / "tests" / "data" / "rules" / "odd-tests.yaml"


@each_prometheus
def test_notation_order_expressions_and_odd_rules_as_with_promtool(version: str) -> None:
    code, text = promtool(version, "test", "rules", str(ODD))
    outcome = run_test_file(ODD)
    ours = "\n".join(failure.text for failure in outcome.failures)
    assert failed_cases(ours) == failed_cases(text), f"{ours}\n{text}"
    assert (not outcome.failures) == (code == 0), f"{ours}\n{text}"


def test_a_failure_shows_what_was_expected_and_what_came(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text((ODD.parent / "odd.yaml").read_text())
    path = tmp_path / "tests.yaml"
    path.write_text(ODD.read_text().replace("exp_alerts: [{}]", "exp_alerts: [{exp_labels: {severity: high}}]"))
    done = CliRunner().invoke(rules, ["test", str(path)], standalone_mode=False)
    assert done.return_value == 1
    assert 'exp:[\n            0:\n              Labels:{alertname="Always", severity="high"}' in done.output
    assert 'got:[\n            0:\n              Labels:{alertname="Always"}' in done.output
    assert f"{path}:" in done.output
    assert done.output.splitlines()[-1].endswith("11 passed, 1 failed")


def test_several_files_and_folders_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("tests: [\n")
    good = [str(RULES / "tests" / "queue.yaml"), str(RULES / "tests" / "host.yaml")]
    done = CliRunner().invoke(rules, ["test", *good, str(tmp_path)], standalone_mode=False)
    assert done.return_value == 1
    assert done.output.splitlines()[-1] == "18 passed, 1 failed"
    assert "empty.yaml:" in done.output


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("rule_files: [r.yaml]\ntest: []\n", "unknown key `test` (did you mean `tests`?)", 2),
        ("rule_files: [none*.yaml]\n", "no rule file is named", 1),
        ("rule_files: [r.yaml]\ntests:\n  - alert_rule_test:\n      - {eval_time: 1m}\n", "without `alertname`", 4),
        ("tests:\n  - input_series:\n      - {series: 'a{', values: '1'}\n", "is no series", 3),
        ("tests:\n  - input_series:\n      - {series: 'a', values: '1 2+'}\n", "`2+` is no value", 3),
        ("tests:\n  - interval: fast\n", "`interval`", 2),
        ("group_eval_order: [a, a]\n", "`a` stands twice", 1),
        ("tests: []\n", "no `rule_files`", 1),
    ],
)
def test_a_file_that_cannot_be_read_is_said_with_its_line(text: str, said: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        run_test_file(path)
    assert said in caught.value.message
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.remedy


def test_an_evaluation_that_fails_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("groups: [{name: g, rules: [{record: x, expr: 'a * on () b'}]}]\n")
    path = tmp_path / "t.yaml"
    series = "".join(f"{{series: '{name}', values: '1x5'}}, " for name in ('b{i="1"}', 'b{i="2"}', "a"))
    case = f"{{input_series: [{series}], promql_expr_test: [{{expr: x, eval_time: 2m}}]}}"
    path.write_text(f"rule_files: [rules.yaml]\ntests: [{case}]\n")
    [failure] = run_test_file(path).failures
    assert "many-to-many" in failure.text or "duplicate series" in failure.text


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("1 -2.5 +3", [1, -2.5, 3]),
        ("1x2", [1, 1, 1]),
        ("1+2x3", [1, 3, 5, 7]),
        ("5-2x2", [5, 3, 1]),
        ("_ _x2 1", [None, None, None, 1]),
        ("1e3 .5 Inf", [1000, 0.5, float("inf")]),
        ("", []),
    ],
)
def test_values_expand(text: str, points: list[float | None]) -> None:
    assert read_values(text) == points


def test_stale_is_the_marker() -> None:
    assert all(is_stale(point) for point in read_values("stale stalex1") if point is not None)
    assert len(read_values("stalex1")) == 2
    assert is_stale(STALE)


@pytest.mark.parametrize("text", ["1+2", "x5", "stale+1x5", "1x2x3", "{{schema:0}}", "1x99999999", "_+1x2", "1,2"])
def test_values_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(NotationError):
        read_values(text)


@pytest.mark.parametrize("text", ["a{b=~'c'}", "sum(a)", "a[5m]", "a offset 5m", "a{", "", "a + b", "1"])
def test_series_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(NotationError):
        read_series(text)


def test_a_test_may_bring_the_thresholds_as_series(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    labels = 'job="vllm", model_name="m"'
    path.write_text(
        f"rule_files: [{RULES / 'alerts' / 'queue.yaml'}]\ntests:\n  - input_series:\n"
        f"      - {{series: 'vllm:num_requests_waiting{{engine=\"0\", {labels}}}', values: '9x20'}}\n"
        f'      - {{series: \'vllm_agent_threshold{{name="queue_length", profile="p", {labels}}}\', values: 5x20}}\n'
        "    promql_expr_test:\n"
        '      - {expr: \'count(ALERTS{alertname="VLLMQueueLong", profile="p", alertstate="firing"})\','
        " eval_time: 15m, exp_samples: [{labels: '{}', value: 1}]}\n"
    )
    assert run_test_file(path).failures == ()
