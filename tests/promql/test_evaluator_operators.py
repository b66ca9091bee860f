"""Binary and unary operators: values, matching, names, errors."""

from __future__ import annotations

import math

import pytest

from agent.series.promql import QueryError
from tests.promql.memory import Memory, ask, labels, number

MANY = "many-to-many matching not allowed: matching labels must be unique on one side"


@pytest.fixture
def memory() -> Memory:
    memory = Memory()
    memory.add("req", [6], job="api", code="200")
    memory.add("req", [2], job="api", code="500")
    memory.add("req", [9], job="web", code="200")
    memory.add("limit", [4], job="api", tier="gold")
    memory.add("limit", [3], job="web", tier="iron")
    return memory


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("1 + 2 * 3 ^ 2", 19),
        ("2 ^ 3 ^ 2", 512),
        ("-2 ^ 2", -4),
        ("2 ^ -1", 0.5),
        ("-1 ^ 2", -1),
        ("2 * 3 % 4", 2),
        ("- - - 1", -1),
        ("1 - -1", 2),
        ("1 < bool 2", 1),
        ("1 == bool (2 > bool 1)", 1),
        ("10 atan2 20", 0.4636476090008061),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("1h30m + 0s", 5400),
        ("1_000 + 0x1F + 017", 1046),
        ("5 % Inf", 5),
    ],
)
def test_scalars(query: str, value: float) -> None:
    assert number(Memory(), query) == pytest.approx(value)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("1 / 0", math.inf),
        ("-1 / 0", -math.inf),
        ("1 / -0", -math.inf),
        ("0 ^ -1", math.inf),
        ("(-0) ^ -3", -math.inf),
        ("(-0) ^ -2", math.inf),
        ("10 ^ 400", math.inf),
        ("(-10) ^ 401", -math.inf),
        ("(-10) ^ 402", math.inf),
        ("1e308 * 10", math.inf),
    ],
)
def test_scalars_overflow_to_infinities(query: str, value: float) -> None:
    assert number(Memory(), query) == value


@pytest.mark.parametrize(
    "query", ["0 / 0", "NaN / 0", "1 % 0", "Inf % 2", "NaN % 2", "(-8) ^ 0.5", "Inf - Inf", "NaN ^ 2"]
)
def test_scalars_without_an_answer_are_nan(query: str) -> None:
    assert math.isnan(number(Memory(), query))


def test_arithmetic_takes_the_name_off_and_a_filter_keeps_it(memory: Memory) -> None:
    assert ask(memory, 'req{code="500"} * 10') == {labels(job="api", code="500"): 20}
    assert ask(memory, 'req{code="500"} > 1') == {labels("req", job="api", code="500"): 2}
    assert ask(memory, 'req{code="500"} > bool 1') == {labels(job="api", code="500"): 1}
    assert ask(memory, '-req{code="500"}') == {labels(job="api", code="500"): -2}
    assert ask(memory, '+req{code="500"}') == {labels("req", job="api", code="500"): 2}


def test_a_filter_keeps_the_vectors_value_whichever_side_it_is_on(memory: Memory) -> None:
    assert ask(memory, "5 < req") == {labels("req", job="api", code="200"): 6, labels("req", job="web", code="200"): 9}
    assert ask(memory, "req >= 9") == {labels("req", job="web", code="200"): 9}
    assert ask(memory, "10 - limit") == {labels(job="api", tier="gold"): 6, labels(job="web", tier="iron"): 7}


def test_one_to_one_keeps_only_the_labels_matched_on(memory: Memory) -> None:
    ratios = {labels(job="api"): 1.5, labels(job="web"): 3}
    assert ask(memory, 'req{code="200"} / on (job) limit') == ratios
    assert ask(memory, 'req{code="200"} / ignoring (code, tier) limit') == ratios
    assert ask(memory, 'req{code="200"} > on (job) limit') == {labels(job="api"): 6, labels(job="web"): 9}
    assert ask(memory, 'req{code="200"} > ignoring (code, tier) limit') == {
        labels("req", job="api"): 6,
        labels("req", job="web"): 9,
    }
    assert ask(memory, "req + limit") == {}


def test_many_to_one_keeps_the_many_sides_labels_and_brings_some_over(memory: Memory) -> None:
    assert ask(memory, "req - on (job) group_left (tier) limit") == {
        labels(job="api", code="200", tier="gold"): 2,
        labels(job="api", code="500", tier="gold"): -2,
        labels(job="web", code="200", tier="iron"): 6,
    }
    assert ask(memory, "limit - on (job) group_right req") == {
        labels(job="api", code="200"): -2,
        labels(job="api", code="500"): 2,
        labels(job="web", code="200"): -6,
    }
    assert ask(memory, "req > on (job) group_left (tier) limit") == {
        labels("req", job="api", code="200", tier="gold"): 6,
        labels("req", job="web", code="200", tier="iron"): 9,
    }


def test_a_label_that_the_one_side_lacks_is_taken_off() -> None:
    memory = Memory()
    memory.add("a", [1], job="x", tier="old")
    memory.add("b", [2], job="x")
    assert ask(memory, "a * on (job) group_left (tier) b") == {labels(job="x"): 2}


def test_a_comparison_yields_the_left_value_even_when_the_right_side_is_many(memory: Memory) -> None:
    assert ask(memory, "limit < on (job) group_right () req") == {
        labels("req", job="api", code="200"): 4,
        labels("req", job="web", code="200"): 3,
    }


def test_many_to_many_is_refused_with_the_two_series_in_order(memory: Memory) -> None:
    with pytest.raises(QueryError) as refused:
        ask(memory, "limit > on (job) req")
    assert refused.value.message == (
        'found duplicate series for the match group {job="api"} on the right hand-side of the operation: '
        '[{__name__="req", code="200", job="api"}, {__name__="req", code="500", job="api"}];' + MANY
    )
    with pytest.raises(QueryError, match="on the left hand-side"):
        ask(memory, "req * on (job) group_right req")
    with pytest.raises(QueryError, match=r"match group \{\} on the right"):
        ask(memory, "vector(1) + on () req")


def test_many_to_one_must_be_asked_for_even_where_a_filter_takes_all_away(memory: Memory) -> None:
    words = r"multiple matches for labels: many-to-one matching must be explicit \(group_left/group_right\)"
    with pytest.raises(QueryError, match=words):
        ask(memory, "req + on (job) limit")
    with pytest.raises(QueryError, match=words):
        ask(memory, "req > on (job) (limit * 1000)")


def test_grouping_labels_must_keep_the_many_apart() -> None:
    memory = Memory()
    memory.add("m", [1], job="x", i="1")
    memory.add("m", [2], job="x", i="2")
    memory.add("one", [3], job="x", i="9")
    with pytest.raises(QueryError, match="grouping labels must ensure unique matches"):
        ask(memory, "m * on (job) group_left (i) one")


def test_set_operators(memory: Memory) -> None:
    assert set(ask(memory, 'req and on (job) limit{tier="gold"}')) == {
        labels("req", job="api", code="200"),
        labels("req", job="api", code="500"),
    }
    assert set(ask(memory, 'req unless on (job) limit{tier="gold"}')) == {labels("req", job="web", code="200")}
    assert set(ask(memory, "limit or on (job) req")) == set(ask(memory, "limit"))
    assert set(ask(memory, 'limit{job="api"} or on (job) req')) == {
        labels("limit", job="api", tier="gold"),
        labels("req", job="web", code="200"),
    }
    assert ask(memory, "req and missing") == {}
    assert ask(memory, "req unless missing") == ask(memory, "req")
    assert ask(memory, "missing or req") == ask(memory, "req")


def test_set_operators_ignore_names_unless_told_otherwise() -> None:
    memory = Memory()
    memory.add("a", [1], i="1")
    memory.add("b", [2], i="1")
    assert set(ask(memory, "a or b")) == {labels("a", i="1")}
    assert set(ask(memory, "a or on (__name__) b")) == {labels("a", i="1"), labels("b", i="1")}


def test_precedence_of_set_operators() -> None:
    memory = Memory()
    memory.add("a", [1])
    assert ask(memory, "a or missing and missing") == ask(memory, "a")
    assert ask(memory, "(a or missing) and missing") == {}


@pytest.mark.parametrize(
    "query",
    ["-{__name__=~'a|b'}", "{__name__=~'a|b'} + 1", "{__name__=~'a|b'} > bool 0", "abs({__name__=~'a|b'})",
     "rate({__name__=~'a|b'}[1m])", "label_replace({__name__=~'a|b'}, '__name__', 'c', '', '')"],
)  # fmt: skip
def test_two_elements_with_one_label_set_are_refused(query: str) -> None:
    memory = Memory()
    memory.add("a", [1, 2], i="1")
    memory.add("b", [2, 3], i="1")
    with pytest.raises(QueryError, match="vector cannot contain metrics with the same labelset"):
        ask(memory, query, 10)


def test_what_keeps_names_does_not_collide() -> None:
    memory = Memory()
    memory.add("a", [1, 2], i="1")
    memory.add("b", [2, 3], i="1")
    assert len(ask(memory, "{__name__=~'a|b'} > 0", 10)) == 2
    assert len(ask(memory, "last_over_time({__name__=~'a|b'}[1m])", 10)) == 2


def test_a_duplicate_is_found_through_filters_and_sets() -> None:
    memory = Memory()
    memory.add("a", [1], i="1")
    memory.add("b", [2], i="1")
    for query in ("({__name__=~'a|b'} > 0) * 2", "({__name__=~'a|b'} and on () vector(1)) * 2", "topk(5, {i='1'}) * 2"):
        with pytest.raises(QueryError, match="same labelset"):
            ask(memory, query)


def test_nan_is_equal_to_nothing() -> None:
    memory = Memory()
    memory.add("m", [math.nan])
    assert ask(memory, "m == NaN") == {}
    assert list(ask(memory, "m != NaN")) == [labels("m")]
    assert ask(memory, "m == bool m") == {labels(): 0}


def test_reserved_labels_go_with_the_name() -> None:
    memory = Memory()
    memory.add("m", [1], __type__="counter", __unit__="s", i="1")
    memory.add("n", [2], __type__="gauge", i="1")
    assert ask(memory, "m * 2") == {labels(i="1"): 2}
    assert ask(memory, "m + n") == {labels(i="1"): 3}
