"""Rates: extrapolation to the window's edges, resets, regression; only two ends and the resets are read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from agent.series.promql.value import Notes, Range, Span
from tests.promql.calls import call, labels, one, span, values, window


def test_a_counter_that_fills_the_window_is_extrapolated_to_both_edges():
    # 10 samples, 10 s apart, 5 s from either edge.
    filled = window(span(range(0, 100, 10), first_s=1005), start_s=1000, end_s=1100)
    assert one(call("delta", filled)) == pytest.approx(90 * 100 / 90)


def test_a_counter_is_not_extrapolated_below_zero():
    # It rises 1 a second from 2: zero was 2 s before the first sample, the edge is 5 s away.
    counter = window(span([2, 12, 22], first_s=5), start_s=0, end_s=25)
    assert one(call("increase", counter)) == pytest.approx(20 * (20 + 2 + 0) / 20)
    assert one(call("rate", counter)) == pytest.approx(22 / 25)
    assert one(call("delta", counter)) == pytest.approx(20 * (20 + 5 + 0) / 20)


def test_beyond_eleven_tenths_of_an_interval_half_an_interval_is_added():
    near = window(span([50, 60], first_s=10.99), start_s=0, end_s=20.99)
    far = window(span([50, 60], first_s=11), start_s=0, end_s=21)
    assert one(call("delta", near)) == pytest.approx(10 * (10 + 10.99) / 10)
    assert one(call("delta", far)) == pytest.approx(10 * (10 + 5) / 10)


def test_a_reset_adds_what_the_counter_had_before():
    reset = window(span([3, 5, 1, 4]), start_s=-10, end_s=30)
    assert one(call("increase", reset)) == pytest.approx(6 * (30 + min(10, 30 * 3 / 6)) / 30)
    assert values(call("resets", reset)) == [1]
    assert values(call("changes", reset)) == [3]


def test_a_reset_just_before_the_window_is_none():
    whole = span([9, 1, 2, 3])
    tail = Span(whole.labels, whole.times, whole.values, 1, 4, whole.drops)
    assert one(call("resets", window(tail, start_s=0, end_s=30))) == 0
    assert one(call("increase", window(tail, start_s=0, end_s=30))) == pytest.approx(2 * (20 + 10) / 20)


def test_resets_are_the_same_with_and_without_the_stores_notes():
    noted = span([1, 2, 0, 5, 4, 4, 9])
    bare = Span(noted.labels, noted.times, noted.values, 0, 7, None)
    for name in ("rate", "increase", "resets"):
        results = [one(call(name, window(each, start_s=-5, end_s=65))) for each in (noted, bare)]
        assert results[0] == results[1]


@pytest.mark.parametrize("name", ["rate", "increase", "delta", "irate", "idelta", "deriv"])
def test_one_sample_has_no_rate(name: str):
    assert call(name, window(span([1]), start_s=0, end_s=60)) == []
    assert call(name, window(span([]), start_s=0, end_s=60)) == []


def test_the_instant_rate_takes_the_last_two_samples_and_a_reset_starts_at_zero():
    assert one(call("irate", window(span([0, 100, 130]), start_s=0, end_s=60))) == 3
    assert one(call("irate", window(span([0, 100, 30]), start_s=0, end_s=60))) == 3
    assert one(call("idelta", window(span([0, 100, 30]), start_s=0, end_s=60))) == -70


def test_a_rate_reads_the_ends_alone():
    reads: list[int] = []

    class Watched(list[float]):
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            assert not isinstance(index, slice), "the window was copied"
            reads.append(index)
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[float]:
            raise AssertionError("the window was walked")

    plain = span([float(value) for value in range(3600)], step_s=1)
    watched = Span(plain.labels, plain.times, Watched(plain.values), 0, 3600, [])
    assert one(call("rate", window(watched, start_s=-1, end_s=3599))) == pytest.approx(1, rel=1e-3)
    assert set(reads) == {0, 3599}


def test_slope_and_prediction():
    line = window(span([0, 10, 20, 30]), start_s=0, end_s=30)
    assert one(call("deriv", line)) == pytest.approx(1)
    assert one(call("predict_linear", line, 70.0, at_s=30)) == pytest.approx(100)
    flat = window(span([7, 7, 7]), start_s=0, end_s=30)
    assert one(call("predict_linear", flat, 1e9, at_s=30)) == 7
    assert math.isnan(one(call("deriv", window(span([math.inf, math.inf]), start_s=0, end_s=30))))


def test_nan_after_nan_is_no_change():
    assert one(call("changes", window(span([math.nan, math.nan, 1, math.nan]), start_s=0, end_s=60))) == 2


def test_a_name_that_is_no_counters_is_told_once_with_its_place():
    notes = Notes()
    two = Range([span([1, 2], name="free"), span([1, 2], name="free"), span([1, 2], name="x_count")], 0, 60_000)
    call("rate", two, notes=notes, where=("(1:6)",))
    assert list(notes.infos) == [
        'PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "free" (1:6)'
    ]
    call("irate", Range([span([1, 2], name="other")], 0, 60_000), notes=notes)
    assert len(notes.infos) == 1
    assert not notes.warnings


def test_labels_come_back_whole():
    [element] = call("rate", window(span([1, 2]), start_s=0, end_s=60))  # type: ignore[misc,str-unpack]
    assert element.labels == labels("m_total")
