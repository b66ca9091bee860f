"""Sums from expositions: what the evidence of a server makes of one answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.series import ExpositionError, family_sums, parse

CAPTURES = sorted((Path(__file__).parents[1] / "data/captures/metrics").glob("*.prom"))
WANTED = ("vllm:generation_tokens_total", "vllm:num_requests_running", "http_requests_total")


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_sums_agree_with_the_reference_parser(path: Path) -> None:
    text = path.read_text()
    expected: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            expected[sample.name] = expected.get(sample.name, 0.0) + sample.value
    assert family_sums(parse(text.encode()).samples) == pytest.approx(expected)
    assert expected.keys() & set(WANTED), "the capture holds none of the families that matter"


def test_label_values_with_braces_spaces_and_hashes_do_not_confuse() -> None:
    body = b'http_requests_total{handler="/a b{c} # d",method="GET"} 3 1700000000000\nhttp_requests_total 2\n'
    assert family_sums(parse(body).samples) == {"http_requests_total": 5.0}


def test_nan_is_left_out_and_broken_lines_are_passed_over() -> None:
    running = b"vllm:num_requests_running"
    body = running + b" NaN\n" + running + b"{\n" + running + b" x\nhttp_requests_total 1\n"
    assert family_sums(parse(body).samples) == {"http_requests_total": 1.0}


@pytest.mark.parametrize("body", [b"<html><body>hi</body></html>", b'{"detail":"Not Found"}', b"\x89PNG\r\n"])
def test_what_is_no_exposition_is_refused(body: bytes) -> None:
    with pytest.raises(ExpositionError, match="exposition"):
        parse(body)
