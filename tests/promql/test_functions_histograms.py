"""Classic histograms: interpolation, buckets that shrink, bounds that are none."""

from __future__ import annotations

import math

import pytest

from agent.series.promql.value import Element, Notes, Vector
from tests.promql.calls import call, labels, one, values

NAN, INF = math.nan, math.inf


def buckets(*pairs: tuple[str, float], name: str = "h_bucket", **more: str) -> Vector:
    return [Element(labels(name, le=bound, **more), float(count)) for bound, count in pairs]


SIMPLE = buckets(("0.1", 10), ("0.2", 30), ("+Inf", 40))


@pytest.mark.parametrize(
    ("q", "expected"), [(0.0, 0.0), (0.25, 0.1), (0.5, 0.15), (0.75, 0.2), (1.0, 0.2), (-0.1, -INF), (1.01, INF)]
)
def test_quantiles_are_interpolated(q: float, expected: float):
    assert one(call("histogram_quantile", q, SIMPLE)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        (buckets(("0.1", 1), ("0.2", 2)), NAN),
        (buckets(("+Inf", 2)), NAN),
        (buckets(("0.1", 0), ("+Inf", 0)), NAN),
        (buckets(("-0.2", 10), ("-0.1", 20), ("+Inf", 20)), -0.2),
        (buckets(("0.1", 1), ("0.2", 1), ("2e-1", 1), ("+Inf", 4)), 0.2),
    ],
)
def test_odd_histograms(vector: Vector, expected: float):
    q = 0.5 if vector[0].labels != buckets(("-0.2", 0))[0].labels else 0.2
    assert one(call("histogram_quantile", q, vector)) == pytest.approx(expected, nan_ok=True)


def test_buckets_that_shrink_are_raised_and_told():
    notes = Notes()
    shrinking = buckets(("0.1", 2), ("1", 1), ("10", 5), ("100", 4), ("1000", 9), ("+Inf", 8))
    assert one(call("histogram_quantile", 0.99, shrinking, notes=notes, where=("(1:20)", "(1:26)"))) == 979.75
    [info] = notes.infos
    assert info.startswith("PromQL info: input to histogram_quantile needed to be fixed for monotonicity (see ")
    assert info.endswith("#histogram_quantile) (1:26)")


def test_a_difference_that_is_rounding_is_taken_away_in_silence():
    notes = Notes()
    close = buckets(("0.1", 100), ("1", 100 - 1e-11), ("+Inf", 100))
    assert one(call("histogram_quantile", 0.5, close, notes=notes)) == pytest.approx(0.05)
    assert not notes.infos


@pytest.mark.parametrize("bound", ["", "abc", "1e400", " 1", "1_0"])
def test_a_bound_that_cannot_be_read_is_warned_of_and_left_out(bound: str):
    notes = Notes()
    result = call("histogram_quantile", 0.5, [*SIMPLE, *buckets((bound, 99))], notes=notes, where=("", "(1:25)"))
    assert one(result) == pytest.approx(0.15)
    [warning] = notes.warnings
    assert warning == (
        'PromQL warning: bucket label "le" is missing or has a malformed value of '
        f'"{bound}" for metric name "h_bucket" (1:25)'
    )


@pytest.mark.parametrize("bound", ["+inf", "Inf", "Infinity", "0x1p-1", ".5", "5e-1", "+0.5"])
def test_bounds_are_read_as_go_reads_them(bound: str):
    notes = Notes()
    call("histogram_quantile", 0.5, buckets((bound, 1)), notes=notes)
    assert not notes.warnings


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (0, 0.1, 0.25), (0, 0.15, 0.5), (0.1, 0.2, 0.5), (-INF, INF, 1), (0.2, INF, 0.25), (1, 1, 0), (2, 1, 0),
        (NAN, 1, NAN), (-5, 0.05, 0.125), (0.2, 5, 0),
    ],
)  # fmt: skip
def test_fractions(lower: float, upper: float, expected: float):
    result = call("histogram_fraction", float(lower), float(upper), SIMPLE)
    assert one(result) == pytest.approx(expected, nan_ok=True)


def test_each_histogram_stands_alone_and_keeps_its_other_labels():
    both = [*SIMPLE, *buckets(("1", 1), ("+Inf", 1), job="b")]
    result = call("histogram_quantile", 0.5, both)
    assert values(result) == [pytest.approx(0.15), pytest.approx(0.5)]
    assert [element.labels for element in result] == [labels("h_bucket"), labels("h_bucket", job="b")]  # type: ignore[union-attr]


def test_the_buckets_that_came_in_stay_as_they_are():
    before = list(SIMPLE)
    call("histogram_quantile", 0.5, SIMPLE)
    assert before == SIMPLE
