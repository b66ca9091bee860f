"""Which samples a query sees: lookback, staleness, windows, offset, @, subqueries."""

from __future__ import annotations

import math

import pytest

from agent.series.promql import QueryError, Range, compile_query
from tests.promql.memory import GONE, Memory, ask, labels, points, ranged


def test_a_sample_exactly_as_old_as_the_lookback_is_gone() -> None:
    memory = Memory()
    memory.add("m", {0: 7})
    assert ask(memory, "m", 299.999) == {labels("m"): 7}
    assert ask(memory, "m", 300) == {}
    assert ask(memory, "m", 59.999, lookback_ms=60_000) == {labels("m"): 7}
    assert ask(memory, "m", 60, lookback_ms=60_000) == {}


def test_a_sample_of_the_very_moment_counts_and_a_later_one_does_not() -> None:
    memory = Memory()
    memory.add("m", {10: 1, 20: 2})
    assert ask(memory, "m", 9.999) == {}
    assert ask(memory, "m", 10) == {labels("m"): 1}
    assert ask(memory, "m", 19.999) == {labels("m"): 1}
    assert ask(memory, "m", 20) == {labels("m"): 2}


def test_a_series_without_samples_gives_nothing() -> None:
    memory = Memory()
    memory.add("m", [])
    assert ask(memory, "m", 10) == {}
    assert ask(memory, "count_over_time(m[1m])", 10) == {}


def test_a_staleness_marker_ends_a_series_at_once_and_an_ordinary_nan_does_not() -> None:
    memory = Memory()
    memory.add("m", {0: 1, 10: GONE, 20: math.nan})
    assert ask(memory, "m", 9) == {labels("m"): 1}
    assert ask(memory, "m", 10) == {}
    assert ask(memory, "m", 19) == {}
    assert list(ask(memory, "m", 20)) == [labels("m")]


def test_windows_are_open_on_the_left_and_closed_on_the_right() -> None:
    memory = Memory()
    memory.add("m", [1, 2, 3, 4])
    assert ask(memory, "sum_over_time(m[20s])", 30) == {labels(): 7}
    assert ask(memory, "sum_over_time(m[20.001])", 30) == {labels(): 9}
    assert ask(memory, "sum_over_time(m[20s])", 29.999) == {labels(): 5}


def test_windows_leave_staleness_markers_out_and_keep_nan() -> None:
    memory = Memory()
    memory.add("m", [1, GONE, math.nan, 4])
    assert ask(memory, "count_over_time(m[1m])", 30) == {labels(): 3}
    assert ask(memory, "count_over_time(m[10s])", 10) == {}
    value = compile_query("m[1m]").instant(memory, 30_000)
    assert isinstance(value, Range)
    assert list(points(value)[labels("m")]) == [0, 20, 30]


def test_a_counter_reset_beside_a_staleness_marker_is_still_seen() -> None:
    memory = Memory()
    memory.add("m_total", [10, 20, GONE, 5, 8])
    assert ask(memory, "resets(m_total[1m])", 40) == {labels(): 1}
    assert ask(memory, "resets(m_total[20s])", 40) == {labels(): 0}


def test_a_window_without_markers_is_no_copy() -> None:
    memory = Memory()
    series = memory.add("m", [1, 2, 3])
    value = compile_query("m[15s]").instant(memory, 20_000)
    assert isinstance(value, Range)
    (span,) = value.spans
    assert span.times is series.times and span.values is series.values
    assert (span.lo, span.hi, value.start_ms, value.end_ms) == (1, 3, 5_000, 20_000)


def test_offset_looks_back_and_ahead() -> None:
    memory = Memory()
    memory.add("m", [0, 1, 2, 3, 4])
    assert ask(memory, "m offset 20s", 30) == {labels("m"): 1}
    assert ask(memory, "m offset -10s", 30) == {labels("m"): 4}
    assert ask(memory, "sum_over_time(m[20s] offset 10s)", 30) == {labels(): 3}


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("m @ 20", 2),
        ("m @ 20 offset 10s", 1),
        ("m offset 10s @ 20", 1),
        ("m @ 1m", 6),
        ("m @ 29.9996", 3),
        ("m @ 29.9994", 2),
        ("m @ start()", 9),
        ("m @ end()", 9),
    ],
)
def test_at_pins_a_selector(query: str, value: float) -> None:
    memory = Memory()
    memory.add("m", list(range(10)))
    assert ask(memory, query, 90) == {labels("m"): value}


def test_at_before_the_epoch_is_not_the_epoch() -> None:
    memory = Memory()
    memory.add("m", {-20: 5, 0: 7})
    assert ask(memory, "m @ -10", 0) == {labels("m"): 5}
    assert ask(memory, "m @ -10 + m @ 10", 0) == {labels(): 12}


def test_start_and_end_are_those_of_the_range_query_even_in_a_subquery() -> None:
    memory = Memory()
    memory.add("m", list(range(20)))
    assert ranged(memory, "m @ start()", 30, 50, 10) == {labels("m"): {30: 3, 40: 3, 50: 3}}
    assert ranged(memory, "m @ end()", 30, 50, 10) == {labels("m"): {30: 5, 40: 5, 50: 5}}
    assert ranged(memory, "sum_over_time((m @ end())[20s:10s])", 30, 40, 10) == {labels(): {30: 8, 40: 8}}


def test_subquery_steps_are_multiples_of_the_step_whatever_the_moment() -> None:
    memory = Memory()
    memory.add("m", list(range(200)), step_s=1)
    assert ask(memory, "sum_over_time(m[30s:7s])", 50) == {labels(): 21 + 28 + 35 + 42 + 49 + 0}
    assert ask(memory, "count_over_time(m[30s:10s])", 55) == {labels(): 3}
    assert ask(memory, "count_over_time(m[30s:10s])", 60) == {labels(): 3}


def test_a_subquery_without_step_takes_the_evaluation_interval() -> None:
    memory = Memory()
    memory.add("m", list(range(200)))
    assert ask(memory, "count_over_time(m[5m:])", 600) == {labels(): 5}
    assert ask(memory, "count_over_time(m[5m:])", 600, interval_ms=15_000) == {labels(): 20}


def test_subquery_steps_before_the_epoch_are_multiples_as_well() -> None:
    memory = Memory()
    memory.add("m", {-100: 1})
    assert ask(memory, "count_over_time(m[55s:10s])", 0) == {labels(): 6}


def test_a_subquery_merges_what_has_one_label_set_at_different_steps() -> None:
    memory = Memory()
    memory.add("a", {0: 1, 10: GONE}, x="1")
    memory.add("b", {10: 2}, x="1")
    assert ask(memory, 'sum_over_time((-{x="1"})[20s:10s])', 10) == {labels(x="1"): -3}


def test_timestamp_gives_the_samples_own_time_for_a_plain_selector_alone() -> None:
    memory = Memory()
    memory.add("m", [1, 2, 3])
    for query in ("timestamp(m)", "timestamp((m))", "timestamp(m offset 0)"):
        assert ask(memory, query, 25) == {labels(): 20}
    assert ask(memory, "timestamp(m @ 12)", 25) == {labels(): 10}
    for query in ("timestamp(+m)", "timestamp(m + 0)", "timestamp(-m)", "timestamp(timestamp(m))"):
        assert ask(memory, query, 25) == {labels(): 25}


def test_matchers_choose_as_prometheus_does() -> None:
    memory = Memory()
    memory.add("m", [1], job="api", env="prod")
    memory.add("m", [2], job="web")
    memory.add("n.x", [3], job="api")
    assert set(ask(memory, 'm{env=""}')) == {labels("m", job="web")}
    assert set(ask(memory, '{job=~"a.i"}')) == {labels("m", job="api", env="prod"), labels("n.x", job="api")}
    assert set(ask(memory, 'm{job!~"a.*"}')) == {labels("m", job="web")}
    assert set(ask(memory, '{job=~"p"}')) == set()
    assert set(ask(memory, '{"n.x"}')) == {labels("n.x", job="api")}
    assert set(ask(memory, '{"n.x", "job"="api"}')) == {labels("n.x", job="api")}
    assert set(ask(memory, '{__name__=~"m|n.x", __name__!="m"}')) == {labels("n.x", job="api")}
    assert ask(memory, '{"m", "n.x"}') == {}


def test_a_range_query_is_a_loop_of_instants_in_the_order_of_labels() -> None:
    memory = Memory()
    memory.add("m", [3, None, None, 4], i="b")
    memory.add("m", [1, 2], i="a")
    result = ranged(memory, "sort_desc(m)", 0, 30, 10)
    assert list(result) == [labels("m", i="a"), labels("m", i="b")]
    assert result[labels("m", i="b")] == {0: 3, 10: 3, 20: 3, 30: 4}
    assert ranged(memory, "1 + 1", 0, 20, 10) == {(): {0: 2, 10: 2, 20: 2}}


@pytest.mark.parametrize("query", ["m[1m]", "m[1m:10s]", '"text"'])
def test_a_range_query_refuses_what_is_no_vector(query: str) -> None:
    with pytest.raises(QueryError, match="invalid expression type"):
        compile_query(query).range(Memory(), 0, 10, 10)


def test_a_range_query_refuses_a_step_that_does_not_move() -> None:
    with pytest.raises(QueryError, match="zero or negative query resolution"):
        compile_query("m").range(Memory(), 0, 10, 0)


def test_two_series_that_become_one_by_a_range_function_are_refused_even_at_different_steps() -> None:
    memory = Memory()
    memory.add("a_total", {0: 1, 10: 2, 20: GONE}, x="1")
    memory.add("b_total", {600: 1, 610: 2}, x="1")
    with pytest.raises(QueryError, match="same labelset"):
        ranged(memory, 'rate({x="1"}[1m])', 10, 650, 20)
    assert ranged(memory, '-{x="1"}', 10, 610, 600) == {labels(x="1"): {10: -2, 610: -2}}
