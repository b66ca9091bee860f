"""One number for a window: sums that lose nothing, NaN among extremes, quantiles, absence."""

from __future__ import annotations

import math

import pytest

from agent.series.promql.functions import FUNCTIONS
from agent.series.promql.value import Element, Notes
from tests.promql.calls import call, one, span, window

NAN, INF = math.nan, math.inf


def over(name: str, *samples: float) -> float:
    return one(call(name, window(span(samples), start_s=-10, end_s=1000)))


def test_sums_are_compensated():
    assert over("sum_over_time", 1, 1e100, 1, -1e100) == 2
    assert over("avg_over_time", 1, 1e100, 1, -1e100) == 0.5


def test_a_mean_outlives_the_overflow_of_its_sum():
    assert over("avg_over_time", 9.9e307, 9.9e307, 9.9e307) == pytest.approx(9.9e307)
    assert over("sum_over_time", 9.9e307, 9.9e307) == INF
    assert math.isnan(over("avg_over_time", 1, INF, -INF))
    assert over("avg_over_time", 1, 2, INF) == INF


@pytest.mark.parametrize(
    ("name", "samples", "expected"),
    [
        ("max_over_time", (NAN, 0, 1), 1),
        ("max_over_time", (2, NAN, 1), 2),
        ("min_over_time", (NAN, 3, 1), 1),
        ("min_over_time", (2, 0, NAN), 0),
        ("count_over_time", (NAN, 1), 2),
        ("last_over_time", (1, 5), 5),
        ("present_over_time", (0, 0), 1),
        ("stdvar_over_time", (0, 8, 8, 2, 3), 10.56),
        ("stddev_over_time", (0, 8, 8, 2, 3), math.sqrt(10.56)),
        ("stdvar_over_time", (1.5990505637277868,) * 3, 0),
    ],
)
def test_reductions(name: str, samples: tuple[float, ...], expected: float):
    assert over(name, *samples) == pytest.approx(expected)


def test_nothing_but_nan_is_nan():
    assert math.isnan(over("max_over_time", NAN, NAN))
    assert math.isnan(over("min_over_time", NAN, NAN))


@pytest.mark.parametrize(("q", "expected"), [(0, 0), (0.5, 1), (0.75, 2.5), (0.8, 2.8), (1, 4), (-1, -INF), (2, INF)])
def test_quantiles_lie_between_neighbours(q: float, expected: float):
    notes = Notes()
    result = call("quantile_over_time", float(q), window(span([4, 0, 1]), start_s=-10, end_s=60), notes=notes)
    assert one(result) == pytest.approx(expected)
    assert bool(notes.warnings) == (not 0 <= q <= 1)


def test_a_quantile_that_is_none_is_warned_of_in_gos_words():
    notes = Notes()
    call("quantile_over_time", NAN, window(span([1]), start_s=-1, end_s=1), notes=notes, where=("(1:20)",))
    assert list(notes.warnings) == ["PromQL warning: quantile value should be between 0 and 1, got NaN (1:20)"]


def test_absence_has_the_labels_that_the_selector_fixes():
    matchers = (
        ("__name__", "=", "m"), ("a", "=", "1"), ("b", "=~", "x"), ("c", "!=", "2"), ("d", "=", "3"), ("d", "=", "4"),
    )  # fmt: skip
    empty = window(start_s=0, end_s=60)
    assert call("absent_over_time", empty, matchers=matchers) == [Element((("a", "1"),), 1.0)]
    assert call("absent", [], matchers=matchers) == [Element((("a", "1"),), 1.0)]
    assert call("absent_over_time", window(span([1]), start_s=-1, end_s=60), matchers=matchers) == []


def test_only_the_last_value_keeps_its_name():
    kept = {name for name, function in FUNCTIONS.items() if not function.drops_name}
    assert kept == {"last_over_time", "label_replace", "label_join", "sort", "sort_desc"}
