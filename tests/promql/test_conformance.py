"""Prometheus' own PromQL test files pass, and the runner that says so tells a failure from a pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.series.data import is_stale
from tests.promql.conformance import Outcome, Verdict, main, run
from tests.promql.notation import HISTOGRAM, OMITTED, duration_ms, points, unquoted

ROOT = Path(__file__).resolve().parents[2]
HANDED = ROOT.parent / "shared" / "promql"
FILES = sorted(HANDED.glob("*.test"))

LOAD = """
load 10s
  up{job="a"} 1 2 3
  up{job="b"} 10 20 30
  native {{schema:0 sum:1 count:1}}
  requests_total 0+10x2
"""


def outcomes(tmp_path: Path, text: str) -> list[Outcome]:
    file = tmp_path / "case.test"
    file.write_text(text, encoding="utf-8")
    return list(run(file))


def verdicts(tmp_path: Path, text: str) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes(tmp_path, text)]


@pytest.mark.skipif(not FILES, reason="Prometheus' test files are not beside this checkout")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_prometheus_own_cases_pass(file: Path):
    found = list(run(file))
    failed = [str(outcome) for outcome in found if outcome.verdict is Verdict.FAILED]
    assert not failed, "\n".join(failed)
    assert any(outcome.verdict is Verdict.PASSED for outcome in found)


@pytest.mark.parametrize(
    "case",
    [
        'eval instant at 20s up\n  up{job="a"} 3\n  up{job="b"} 30',
        'eval instant at 20s up{job="a"} * 1.0000001\n  {job="a"} 3',
        'eval range from 0 to 20s step 10s up{job="a"}\n  up{job="a"} 1 2 3',
        'eval range from 0 to 30s step 10s up{job="a"} > 2\n  up{job="a"} _ _ 3 3',
        'eval_ordered instant at 20s sort_desc(up)\n  up{job="b"} 30\n  up{job="a"} 3',
        'eval instant at 20s sort(up)\n  expect ordered\n  up{job="a"} 3\n  up{job="b"} 30',
        "eval instant at 0 1 + 1\n  2",
        "eval instant at 0 NaN\n  NaN",
        'eval instant at 0 "text"\n  expect string `text`',
        "eval instant at 0 nothing",
        "eval_fail instant at 0 up + on(x) up",
        'eval instant at 0 label_join(up, "job", "", "x")\n'
        "  expect fail msg: vector cannot contain metrics with the same labelset",
        'eval instant at 0 label_join(up, "job", "", "x")\n  expect fail regex: same label.*',
        "eval instant at 20s rate(requests_total[20s])\n  expect no_info\n  expect no_warn\n  {} 1",
        'eval instant at 20s rate(up{job="a"}[20s])\n  expect info\n  {job="a"} 0.1',
        'eval_info instant at 20s rate(up{job="a"}[20s])\n  {job="a"} 0.1',
        'eval instant at 20s rate(up{job="a"}[20s])\n'
        "  expect info msg: PromQL info: metric might not be a counter, name does not end in "
        '_total/_sum/_count/_bucket: "up" (1:6)\n  {job="a"} 0.1',
        'eval instant at 20s up{job="a"}[20s]\n  expect range vector from 10s to 20s step 10s\n  up{job="a"} 2 3',
    ],
)
def test_cases_that_hold_pass(tmp_path: Path, case: str):
    assert verdicts(tmp_path, LOAD + "\n" + case) == [Verdict.PASSED], outcomes(tmp_path, LOAD + "\n" + case)


@pytest.mark.parametrize(
    "case",
    [
        'eval instant at 20s up\n  up{job="a"} 3',
        'eval instant at 20s up\n  up{job="a"} 3\n  up{job="b"} 30\n  up{job="c"} 1',
        'eval instant at 20s up{job="a"}\n  up{job="a"} 3.00001',
        'eval instant at 20s up{job="a"}\n  {job="a"} 3',
        'eval instant at 20s up{job="a"}\n  up{job="a", x="y"} 3',
        'eval instant at 20s up{job="a"}\n  up{job="a"} NaN',
        'eval range from 0 to 20s step 10s up{job="a"}\n  up{job="a"} 1 2',
        'eval range from 0 to 20s step 10s up{job="a"}\n  up{job="a"} 1 _ 3',
        'eval range from 0 to 20s step 10s up{job="a"}\n  up{job="a"} 1 2 3 4',
        'eval range from 0 to 20s step 10s up{job="a"}\n  up{job="a"} 1 2 4',
        'eval_ordered instant at 20s sort(up)\n  up{job="b"} 30\n  up{job="a"} 3',
        "eval instant at 0 1 + 1\n  3",
        "eval instant at 0 vector(2)\n  2",
        "eval instant at 0 2\n  {} 2",
        'eval instant at 0 "text"\n  expect string "texts"',
        "eval_fail instant at 0 up",
        "eval instant at 0 nonsense(up)",
        "eval instant at 0 up +",
        'eval instant at 0 label_join(up, "job", "", "x")\n  expect fail msg: something else',
        'eval instant at 20s rate(up{job="a"}[20s])\n  expect no_info\n  {job="a"} 0.1',
        "eval instant at 20s rate(requests_total[20s])\n  expect info\n  {} 1",
        "eval instant at 20s rate(requests_total[20s])\n  expect warn\n  {} 1",
        'eval instant at 20s rate(up{job="a"}[20s])\n'
        "  expect info msg: PromQL info: metric might not be a counter, name does not end in "
        '_total/_sum/_count/_bucket: "up" (1:7)\n  {job="a"} 0.1',
        'eval instant at 20s up{job="a"}[20s]\n  expect range vector from 10s to 20s step 10s\n  up{job="a"} 2 4',
        'eval instant at 20s up{job="a"}[20s]\n  up{job="a"} 2',
    ],
)
def test_cases_that_do_not_hold_fail(tmp_path: Path, case: str):
    assert verdicts(tmp_path, LOAD + "\n" + case) == [Verdict.FAILED]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("eval instant at 0 native", "native"),
        ("eval instant at 0 absent(native)", "native"),
        ('eval instant at 0 {__name__=~"native|up"}', "native"),
        ("eval instant at 0 up\n  up {{count:1}}", "native"),
        ("eval instant at 0 histogram_count(up)", "native"),
        ("eval_fail instant at 0 limitk(1, up)", "flag"),
        ("eval instant at 0 limit_ratio by (job) (1, up)", "flag"),
        ("eval instant at 0 mad_over_time(up[1m])", "flag"),
        ("eval instant at 0 info(up)", "info()"),
        ("eval instant at 0 rate(up[1m+1m])", "duration"),
        ("eval instant at 0 rate(up[2 * (30s)])", "duration"),
        ("eval instant at 0 up offset (1m)", "duration"),
        ("eval instant at 0 up offset -(1m)", "duration"),
        ("eval instant at 0 rate(up[1m] anchored)", "flag"),
        ("eval instant at 0 up smoothed", "flag"),
        ("eval instant at 0 up + fill(0) down", "flag"),
        ("eval instant at 0 step()", "flag"),
        ("eval instant at 0 rate(up[5m::1m])", "flag"),
        ("eval instant at 20s started", "start timestamps"),
    ],
)
def test_the_closed_list_of_what_is_unsupported(tmp_path: Path, case: str, reason: str):
    load = LOAD + "  started@st -1s _ _\n  started 1 2 3\n"
    [outcome] = outcomes(tmp_path, load + "\n" + case)
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert reason in outcome.reason


@pytest.mark.parametrize(
    "query",
    ["up @ start()", "up offset -5m ^ 2", "up{x=\"limitk(1, y)\"}", "rate(up[5m:1m])", "rate(up[5m:])", "up - fill",
     "up # limitk(1, up)", "sum by (smoothed) (up)", "min_over_time(up[300])", "up offset 10 + 2"],
)  # fmt: skip
def test_what_only_looks_like_it_is_supported(tmp_path: Path, query: str):
    verdict = verdicts(tmp_path, f"{LOAD}\neval instant at 20s {query}\n  nothing 1")
    assert verdict == [Verdict.FAILED]


def test_a_histogram_beside_the_query_is_no_reason(tmp_path: Path):
    assert verdicts(tmp_path, f'{LOAD}\neval instant at 20s up{{job="a"}}\n  up{{job="a"}} 3') == [Verdict.PASSED]


def test_classic_histograms_are_read_where_native_ones_were_made_of_them(tmp_path: Path):
    load = 'load_with_nhcb 10s\n  h_bucket{le="1"} 0+1x2\n  h_bucket{le="+Inf"} 0+2x2\n'
    classic = "eval instant at 20s histogram_quantile(0.5, h_bucket)\n  {} 1"
    native = "eval instant at 20s histogram_quantile(0.5, h)\n  {} 1"
    assert verdicts(tmp_path, f"{load}\n{classic}\n\n{native}") == [Verdict.PASSED, Verdict.UNSUPPORTED]


def test_an_evaluator_that_breaks_fails_the_case_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> float:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("tests.promql.conformance.instant", broken)
    [outcome] = outcomes(tmp_path, "eval instant at 0 1\n  1\n")
    assert outcome.verdict is Verdict.FAILED
    assert "ZeroDivisionError" in outcome.reason


def test_the_values_of_a_series_are_expanded_as_prometheus_does():
    assert points("1 2+3x2 _ _x2 0x1 1-0.5x1 -Inf NaNx0")[:8] == [1, 2, 5, 8, OMITTED, OMITTED, OMITTED, 0]
    assert points("1+0x4000") == [1] * 4001
    assert [is_stale(point) for point in points("stalex2 1")] == [True, True, True, False]  # type: ignore[arg-type]
    assert points("{{count:1}} {{a b:[1 2]}}+{{c:1}}x3") == [HISTOGRAM] * 5
    assert points("1e3 1e-3x1") == [1000, 0.001, 0.001]
    assert duration_ms("1h2m3s4ms") == 3_723_004
    assert unquoted('"a\\xffb\\u00e9"') == "a\udcffb\u00e9"


def test_clear_forgets_and_loads_add_up(tmp_path: Path):
    text = f"{LOAD}\nload 10s\n  more 7\n\neval instant at 0 more + on() group_left sum(up)\n  {{}} 18\n\nclear\n\n" + (
        "eval instant at 0 up\n"
    )
    assert verdicts(tmp_path, text) == [Verdict.PASSED, Verdict.PASSED]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("frobnicate 10s\n", 1, "not a command: 'frobnicate 10s'"),
        ("load 10s\n  up one\n", 1, "not a value: 'one' (line 2)"),
        ("load 10\n", 1, "not a duration: '10'"),
        ("\n\neval sometime at 0 up\n", 3, "not an eval command"),
        ("eval instant at 0 up\n  expect mercy\n", 1, "not an expect line: 'expect mercy' (line 2)"),
        ("eval instant at 0 up\n  expect fail regex: (\n", 1, "missing )"),
        ("clear all\nnow\n", 1, "line 2"),
    ],
)
def test_what_cannot_be_read_fails_with_its_line_and_the_rest_still_runs(
    tmp_path: Path, text: str, line: int, said: str
):
    first, last = outcomes(tmp_path, text + "\neval instant at 0 1\n  1\n")
    assert (first.verdict, first.line) == (Verdict.FAILED, line)
    assert said in first.reason
    assert last.verdict is Verdict.PASSED


def test_the_command_line_names_each_failure_and_ends_with_the_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    good, bad = tmp_path / "good.test", tmp_path / "bad.test"
    good.write_text("eval instant at 0 1\n  1\n\neval instant at 0 limitk(1, up)\n")
    bad.write_text("\neval instant at 0 1\n  2\n")
    assert main([str(good)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 1 unsupported"
    assert main([str(good), str(bad), str(tmp_path / "missing.test")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAILED bad.test:2 1" in lines
    assert "    expected 2.0, got 1.0" in lines
    assert any("missing.test" in line and "FAILED" in line for line in lines)
    assert lines[-1] == "1 passed, 2 failed, 1 unsupported"


def test_it_runs_as_a_script_from_anywhere(tmp_path: Path):
    file = tmp_path / "one.test"
    file.write_text("eval instant at 0 1\n  1\n")
    script = ROOT / "tests" / "promql" / "conformance.py"
    done = subprocess.run([sys.executable, str(script), str(file)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 unsupported"), done.stderr
