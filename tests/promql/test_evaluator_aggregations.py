"""Aggregations: groups, sums to the last bit, NaN, choices and their order."""

from __future__ import annotations

import math

import pytest

from agent.series.promql import Notes, QueryError
from tests.promql.memory import Memory, ask, asked, labels


def memory_of(*values: float, name: str = "m") -> Memory:
    memory = Memory()
    for index, value in enumerate(values):
        memory.add(name, [value], i=str(index))
    return memory


@pytest.mark.parametrize(
    ("values", "operator", "expected"),
    [
        ((2, 8, 1e100, -1e100), "sum", 10),
        ((2, 8, 1e100, -1e100), "avg", 2.5),
        ((1e308, 1e308, 1e308), "avg", 1e308),
        ((-1e308, -1e308, 1e308, 1e308), "avg", 0),
        ((math.inf, 1), "sum", math.inf),
        ((math.inf, 1), "avg", math.inf),
        ((1, 2, 3, 4), "stdvar", 1.25),
        ((1, 3), "stddev", 1),
        ((3, math.nan, 1), "min", 1),
        ((math.nan, 3, 1), "max", 3),
        ((5, 5, 5), "count", 3),
        ((5, 6), "group", 1),
        ((0.1,) * 10, "sum", 1),
        ((52,) * 12, "avg", 52),
    ],
)
def test_one_value_of_many(values: tuple[float, ...], operator: str, expected: float) -> None:
    assert ask(memory_of(*values), f"{operator}(m)") == {labels(): expected}


@pytest.mark.parametrize(
    ("values", "operator"),
    [
        ((math.inf, -math.inf), "sum"),
        ((math.inf, -math.inf), "avg"),
        ((1, math.nan), "sum"),
        ((math.nan, math.nan), "min"),
        ((math.nan,), "max"),
        ((math.inf, 1), "stdvar"),
        ((1, math.nan), "stddev"),
    ],
)
def test_no_value_of_many(values: tuple[float, ...], operator: str) -> None:
    (value,) = ask(memory_of(*values), f"{operator}(m)").values()
    assert math.isnan(value)


def test_groups() -> None:
    memory = Memory()
    memory.add("m", [1], job="a", i="1")
    memory.add("m", [2], job="a", i="2")
    memory.add("m", [4], job="b", i="1")
    memory.add("m", [8], i="1")
    by_job = {labels(job="a"): 3, labels(job="b"): 4, labels(): 8}
    assert ask(memory, "sum by (job) (m)") == by_job
    assert ask(memory, "SUM(m) BY (job, missing)") == by_job
    assert ask(memory, "sum without (i) (m)") == by_job
    assert ask(memory, "sum by () (m)") == {labels(): 15}
    assert ask(memory, "sum(m)") == {labels(): 15}
    assert len(ask(memory, "sum without () (m)")) == 4
    assert ask(memory, "sum by (__name__) (m)") == {labels("m"): 15}
    assert ask(memory, 'sum by ("job") (m)') == by_job


def test_labels_are_not_run_together() -> None:
    memory = Memory()
    memory.add("m", [1], a="aa", b="bb")
    memory.add("m", [2], a="a", b="abb")
    assert len(ask(memory, "sum by (a, b) (m)")) == 2


def test_an_aggregation_of_nothing_is_nothing() -> None:
    for query in ("sum(m)", "count(m)", "topk(1, m)", "quantile(0.5, m)", 'count_values("v", m)'):
        assert ask(Memory(), query) == {}


def test_topk_and_bottomk_order_their_elements_and_put_nan_last() -> None:
    memory = memory_of(3, math.nan, 7, 5)
    assert [element.value for element in asked(memory, "topk(2, m)")] == [7, 5]
    assert [element.value for element in asked(memory, "bottomk(2, m)")] == [3, 5]
    assert [str(element.value) for element in asked(memory, "topk(9, m)")] == ["7.0", "5.0", "3.0", "nan"]
    assert [str(element.value) for element in asked(memory, "bottomk(9, m)")] == ["3.0", "5.0", "7.0", "nan"]
    assert asked(memory, "topk(1, m)")[0].labels == labels("m", i="2")


def test_topk_within_each_group() -> None:
    memory = Memory()
    for index in range(6):
        memory.add("m", [index], g=str(index % 2), i=str(index))
    assert set(ask(memory, "topk by (g) (1, m)").values()) == {4, 5}
    assert set(ask(memory, "bottomk by (g) (2, m)").values()) == {0, 1, 2, 3}


def test_of_equals_those_survive_that_prometheus_keeps() -> None:
    """Seen on Prometheus 3.5: a binary heap, not the first ones."""
    memory = memory_of(1, 1, 1, 2)
    assert [element.labels for element in asked(memory, "topk(2, m)")] == [labels("m", i="3"), labels("m", i="1")]
    assert [element.labels for element in asked(memory_of(1, 1, 1), "topk(2, m)")] == [
        labels("m", i="0"),
        labels("m", i="1"),
    ]


@pytest.mark.parametrize("count", ["0", "-1", "0.9", "-Inf"])
def test_less_than_one_element_is_none(count: str) -> None:
    assert ask(memory_of(1, 2), f"topk({count}, m)") == {}


def test_a_number_of_elements_that_is_none_is_refused() -> None:
    with pytest.raises(QueryError, match=r"^Parameter value is NaN$"):
        ask(memory_of(1), "topk(NaN, missing)")
    with pytest.raises(QueryError, match=r"^Scalar value \+Inf overflows int64$"):
        ask(memory_of(1), "bottomk(Inf, m)")


def test_quantile() -> None:
    memory = memory_of(0, 1, 4)
    assert ask(memory, "quantile(0.8, m)") == {labels(): pytest.approx(2.8)}
    assert ask(memory, "quantile(0, m)") == {labels(): 0}
    assert ask(memory, "quantile(1, m)") == {labels(): 4}
    assert ask(memory_of(0, 1, math.nan), "quantile(0.8, m)") == {labels(): pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("share", "shown", "value"), [("1.5", "1.5", math.inf), ("-1", "-1", -math.inf), ("NaN", "NaN", math.nan)]
)
def test_a_quantile_beyond_its_bounds_warns_with_its_place(share: str, shown: str, value: float) -> None:
    notes = Notes()
    (found,) = ask(memory_of(1, 2), f"1 +\n  quantile by (x) (({share}), m)", notes=notes).values()
    assert found == value or (math.isnan(found) and math.isnan(value))
    assert list(notes.warnings) == [f"PromQL warning: quantile value should be between 0 and 1, got {shown} (2:21)"]


def test_count_values_writes_values_without_exponents() -> None:
    memory = memory_of(6, 6, 1e21, 1e-7, 0.5, math.inf, math.nan, -0.0)
    assert {dict(key)["v"]: value for key, value in ask(memory, 'count_values("v", m)').items()} == {
        "6": 2,
        "1000000000000000000000": 1,
        "0.0000001": 1,
        "0.5": 1,
        "+Inf": 1,
        "NaN": 1,
        "-0": 1,
    }


def test_count_values_within_groups_may_overwrite_a_label() -> None:
    memory = Memory()
    memory.add("m", [1], job="a", i="1")
    memory.add("m", [1], job="a", i="2")
    memory.add("m", [2], job="b", i="1")
    assert ask(memory, 'count_values by (job) ("v", m)') == {labels(job="a", v="1"): 2, labels(job="b", v="2"): 1}
    assert ask(memory, 'count_values without (i) ("job", m)') == {labels(job="1"): 2, labels(job="2"): 1}
    assert ask(memory, 'count_values((("v")), m)') == {labels(v="1"): 2, labels(v="2"): 1}


def test_count_values_refuses_a_label_that_is_no_utf8() -> None:
    with pytest.raises(QueryError) as refused:
        ask(memory_of(1), r'count_values("a\xc5z", m)')
    assert refused.value.message == r'invalid label name "a\xc5z"'
    with pytest.raises(QueryError, match="invalid label name"):
        ask(memory_of(1), 'count_values("", m)')
    assert ask(memory_of(1), r'count_values("\xc3\xa9", m)') == {labels(**{"é": "1"}): 1}
