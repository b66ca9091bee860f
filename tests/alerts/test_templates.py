"""Texts of alerts: the characters that Prometheus would have written, or a refusal when the file is loaded."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from agent.alerts import Template, TemplateError
from tests.support.prometheus import VERSIONS, program

TEXTS = [
    "plain",
    "{{ $value }}",
    "{{ .Value }}",
    "{{ $value | humanize }}",
    "{{ $value | humanize1024 }}",
    "{{ humanizeDuration $value }}",
    "{{ $value | humanizePercentage }}",
    '{{ printf "%.2f" $value }}',
    '{{ printf "%.0f|%f|%v|%%" $value $value $value }}',
    " a {{- $labels.i -}} \n b",
    '{{ .Labels.i | humanize }}/{{.Labels.nope}}/{{ "q\\"x" }}{{/* c */}}{{- /* d */ -}} z',
    '{{ printf "%s-%v" $labels.i (humanize $value) | printf "<%s>" }}',
    '{{ `raw` }}{{ 3 }}{{ 3.50 }}{{ printf "%v" $labels.i }}',
    "{{ ($value) | humanize | printf `%s!` }}",
    "{{\n  $labels.i\n}}",
]
VALUES = [
    *(0, 1, -1, 0.5, 0.00012345, 0.000012345, 123456, 1234567, 100000, 999999.5, 1e6, -1e6, 1e15, 1e-7),
    *(999.95, 999.9999, 1000, 1023.9, 1024, 1536, 3661, 172803.5, 59.99996, 59.5, 0.0999995, -1234.5),
    *(math.inf, -math.inf, math.nan, 2.5, 0.125, 5e-324, 0.1 + 0.2, -0.25, -3700),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_texts_equal_those_of_promtool(tmp_path: Path, version: str) -> None:
    promtool = program("promtool", version)
    rules = [
        {"alert": f"A{n}", "expr": "x == x or x != x", "annotations": {"a": text}, "labels": {"n": text}}
        for n, text in enumerate(TEXTS)
    ]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f'x{{i="{i}"}}', "values": _written(value)} for i, value in enumerate(VALUES)
                ],
                "alert_rule_test": [
                    {
                        "eval_time": "0m",
                        "alertname": f"A{n}",
                        "exp_alerts": [_alert(text, i) for i in range(len(VALUES))],
                    }
                    for n, text in enumerate(TEXTS)
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    ran = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[:3000]


def _alert(text: str, index: int) -> dict[str, object]:
    expanded = Template(text).expand({"i": str(index), "__name__": "x"}, VALUES[index])
    return {"exp_labels": {"i": str(index), "n": expanded}, "exp_annotations": {"a": expanded}}


def _written(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("{{ $value | humanize }}", 1234567.0, "1.235M"),
        ("{{ $value | humanizeDuration }}", 93784.0, "1d 2h 3m 4s"),
        ("{{ $value | humanizePercentage }}", 0.12345, "12.35%"),
        ("{{ $value | humanize1024 }}", 1.5 * 2**30, "1.5Gi"),
        ('{{ printf "%.3f" $value }}', 2.0, "2.000"),
        ("{{ $labels.engine }}", 0.0, "0"),
        ("{{ $labels.engine | humanizePercentage }}", 0.0, "0%"),
    ],
)
def test_what_a_person_reads(text: str, value: float, expected: str) -> None:
    assert Template(text).expand({"engine": "0"}, value) == expected


def test_an_error_while_expanding_is_told_in_the_text() -> None:
    text = Template("x {{ $labels.a | humanize }}").expand({"a": "b"}, 1)
    assert text == '<error expanding template: `humanize` cannot read the number "b">'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ if true }}x{{ end }}", "`if` is not supported"),
        ("{{ range .Labels }}", "`range` is not supported"),
        ("{{ $x := 1 }}", "variables cannot be set"),
        ('{{ query "up" }}', "`query` is not supported"),
        ("{{ $labels }}", "names no single label"),
        ("{{ $labels.a.b }}", "names no single label"),
        ("{{ $externalLabels.a }}", "`$externalLabels.a` is not supported"),
        ("{{ . }}", "is not known"),
        ("{{ $value", "is not closed"),
        ("{{ $value }", "is not known"),
        ("{{}}", "is empty"),
        ("{{ ($value }}", "a parenthesis is not closed"),
        ("{{ $value ) }}", "is not expected here"),
        ("{{ $value | }}", "a value is missing"),
        ("{{ $value | $labels.a }}", "only a function can stand behind"),
        ("{{ $labels.a $value }}", "takes no arguments"),
        ("{{ humanize }}", "takes one argument, not 0"),
        ("{{ humanize $value $value }}", "takes one argument, not 2"),
        ('{{ printf "%d" $value }}', "`printf` does not know `%d`"),
        ('{{ printf "%.2g" $value }}', "`printf` does not know `%.2"),
        ('{{ printf "%s" $value }}', "and this is a number"),
        ('{{ printf "%.2f" $labels.a }}', "and this is text"),
        ('{{ printf "%.2f" 3 }}', "and this is integer"),
        ('{{ printf "%.2f" }}', "1 verbs and 0 values"),
        ('{{ printf "x" $value }}', "0 verbs and 1 values"),
        ("{{ printf $labels.a }}", "needs a format in quotes"),
        ('{{ "\\q" }}', "escape that is not supported"),
        ('{{ "x }}', "is not closed"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(TemplateError) as error:
        Template(text)
    assert reason in str(error.value)
