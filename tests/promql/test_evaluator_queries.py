"""What a compiled query tells of itself, what it refuses, and what rules share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.series.data import Labels
from agent.series.promql import Notes, QueryError, Session, UnsupportedError, compile_query
from agent.series.promql.value import Call, Element, Function
from tests.promql.memory import Memory, ask, labels, ranged


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limitk(1, m)", "aggregation limitk"),
        ("limit_ratio(0.5, m)", "aggregation limit_ratio"),
        ("info(m)", "function info()"),
        ("histogram_count(m)", "function histogram_count()"),
        ("mad_over_time(m[5m])", "function mad_over_time()"),
        ("double_exponential_smoothing(m[5m], 0.5, 0.5)", "function double_exponential_smoothing()"),
        ('sort_by_label(m, "a")', "function sort_by_label()"),
        ("max_of(1, 2)", "function max_of()"),
        ("m + fill(0) n", "modifier fill of +"),
        ("m anchored", "modifier anchored"),
        ("rate(m[5m] smoothed)", "modifier smoothed"),
        ("rate(m[5m + 1m])", "duration expression in a range"),
        ("m[step()]", "duration expression in a range"),
        ("m offset (1m + 1m)", "duration expression in offset"),
        ("m[5m::1m]", "aligned subquery ::"),
        ('m{a="b" or c="d"}', "operator or between label matchers"),
        ("m </ 5", "operator </"),
    ],
)
def test_what_is_not_supported_is_named_when_compiled(query: str, named: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        compile_query(query)
    assert refused.value.message.partition(" ")[2].startswith(f"{named} is not supported (")
    assert not isinstance(refused.value, QueryError)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "no expression found"),
        ("sum(", "unclosed left parenthesis"),
        ("m +", "invalid promql query"),
        ("m{", "unexpected end"),
        ("nosuch(m)", 'unknown function with name "nosuch"'),
        ("holt_winters(m[5m], 0.5, 0.5)", 'unknown function with name "holt_winters"'),
        ("rate(m)", "expected type matrix"),
        ("rate(m[5m], 1)", "expected 1 argument"),
        ("sum(1)", "expected type vector"),
        ("1 > 2", "comparisons between scalars must use BOOL modifier"),
        ("m + bool n", "bool modifier can only be used on comparison operators"),
        ("1 and m", "set operator 'and' not allowed in binary scalar expression"),
        ("m + on(a) 2", "vector matching only allowed between vectors"),
        ("m and on(a) group_left n", "no grouping allowed for 'and' operation"),
        ("m + on(a) group_left(a) n", "must not occur in ON and GROUP clause at once"),
        ("{}", "at least one non-empty matcher"),
        ('{a=~".*"}', "at least one non-empty matcher"),
        ('m{__name__="m"}', "metric name must not be set twice"),
        ("m[0]", "duration must be greater than 0"),
        ("m[0s]", "duration must be greater than 0"),
        ("m[5m:0s]", "duration must be greater than 0"),
        ("m[300y]", "duration out of range"),
        ("m offset 1e300", "duration out of range"),
        ("m @ 1e300", "timestamp out of bounds for @ modifier"),
        ("m @ NaN", "timestamp out of bounds for @ modifier"),
        ('m{a=~"x**"}', r'error parsing regexp "x\*\*": bad repetition operator'),
        ('m{a=~"("}', "illegal regex"),
        ('m + "a"', "must contain only scalar and instant vector"),
        ("-m[5m]", "unary expression only allowed"),
        ("+m[5m]", "unary expression only allowed"),
        ("rate(+m[5m])", "unary expression only allowed"),
        ("(m) offset 5m", "offset modifier must be preceded"),
        ("m offset 1m offset 1m", "offset may not be set multiple times"),
        (r'"\400"', "error unquoting string"),
        ("m[1d2w]", "not a valid duration"),
    ],
)
def test_what_prometheus_refuses_is_refused_when_compiled(query: str, words: str) -> None:
    with pytest.raises(QueryError, match=words):
        compile_query(query)


@pytest.mark.parametrize(
    "query",
    ["(" * 50_000 + "1" + ")" * 50_000, "-" * 50_000 + "m", "m" + " + m" * 50_000, "abs(" * 150 + "m" + ")" * 150],
    ids=["parentheses", "signs", "sum", "calls"],
)
def test_a_query_that_would_exhaust_the_stack_is_refused(query: str) -> None:
    with pytest.raises(QueryError, match="nested too deeply"):
        compile_query(query)


def test_a_query_of_many_terms_is_evaluated() -> None:
    memory = Memory()
    memory.add("m", [1])
    assert ask(memory, "m" + " + m" * 90) == {labels(): 91}
    assert ask(memory, "abs(" * 90 + "m" + ")" * 90) == {labels(): 1}


@given(st.text(alphabet="mn(){}[]\"'`,:=~!<>+-*/%^@#0159ehx_$. \n\\sumbyonrateoffsetbool", max_size=40))
def test_no_text_ends_in_another_error(text: str) -> None:
    try:
        compile_query(text)
    except (QueryError, UnsupportedError):
        return


@pytest.mark.parametrize(
    ("query", "value"),
    [
        (r'"\x41\u00e9\101"', "AéA"),
        (r'"\xc3\xa9"', "é"),
        (r"'it\'s'", "it's"),
        ("`a\\nb`", "a\\nb"),
        (r'"a\"b\\x41"', 'a"b\\x41'),
        (r'"\xff"', "\udcff"),
    ],
)
def test_strings_are_read_as_go_reads_them(query: str, value: str) -> None:
    assert compile_query(query).instant(Memory(), 0) == value


def test_the_families_and_windows_of_a_query() -> None:
    query = compile_query(
        "rate(a_total[5m] offset 1m) > on() max_over_time(sum(b)[10m:1m]) unless c offset 2m"
        ' or {__name__=~"d|e", x="1"} or {x="2"} or f @ 100 or g offset -10m'
    )
    needs = [(selected.families, selected.window_ms // 1000, selected.pinned) for selected in query.selectors]
    assert needs == [
        (frozenset({"a_total"}), 360, False),
        (frozenset({"b"}), 900, False),
        (frozenset({"c"}), 420, False),
        (frozenset({"d", "e"}), 300, False),
        (None, 300, False),
        (frozenset({"f"}), 300, True),
        (frozenset({"g"}), 0, False),
    ]
    assert query.families() == frozenset({"a_total", "b", "c", "d", "e", "f", "g"})
    assert [(m.name, m.match.value, m.value) for m in query.selectors[3].matchers] == [
        ("__name__", "=~", "d|e"),
        ("x", "=", "1"),
    ]


def test_nested_subqueries_add_up_and_a_pinned_one_begins_anew() -> None:
    (selected,) = compile_query("max_over_time(min_over_time(m[5m:1m] offset 1m)[1h:5m] offset 2m)").selectors
    assert selected.window_ms == (3600 + 120 + 300 + 60 + 300) * 1000
    (selected,) = compile_query("max_over_time(m[5m:1m] @ 1000)").selectors
    assert selected.pinned


@pytest.mark.parametrize(
    ("query", "branches"),
    [
        ("a > 1", [{"a"}]),
        ("a or b", [{"a"}, {"b"}]),
        ("sum(a or b) / c", [{"a", "c"}, {"b", "c"}]),
        ("(a or b) and (c or d)", [{"a", "c"}, {"a", "d"}, {"b", "c"}, {"b", "d"}]),
        ("a unless b", [{"a"}]),
        ("absent(a)", [set()]),
        ("a or vector(0)", [{"a"}, set()]),
        ('{__name__=~"a|b"} > 0', [{"a"}, {"b"}]),
        ("rate(a[5m]) > 0 or rate(a[1m]) > 0", [{"a"}]),
        ("1 + 1", [set()]),
    ],
)
def test_the_branches_of_a_query(query: str, branches: list[set[str]]) -> None:
    assert [set(branch) for branch in compile_query(query).branches()] == branches


def _counting(calls: list[str]) -> dict[str, Function]:
    def evaluate(call: Call) -> list[Element]:
        calls.append(call.texts[0])
        call.notes.info("PromQL info: seen")
        (window,) = call.arguments
        return [Element(span.labels, float(len(span))) for span in window.spans]  # type: ignore[union-attr]

    return {"rate": Function("rate", evaluate)}


def test_rules_of_a_session_share_what_they_compute_and_every_one_gets_the_notes() -> None:
    memory = Memory()
    memory.add("m_total", [1, 2, 3], i="1")
    calls: list[str] = []
    functions = _counting(calls)
    queries = [compile_query(f"sum(rate(m_total[1m])) > {bound}", functions=functions) for bound in (0, 1)]
    session = Session(memory)
    for query in queries:
        notes = Notes()
        assert query.instant(memory, 20_000, session=session, notes=notes) == [Element((), 3.0)]
        assert list(notes.infos) == ["PromQL info: seen"]
    assert (len(calls), memory.selections) == (1, 1)
    memory.series[0].append(30_000, 4)
    assert queries[0].instant(memory, 30_000, session=session) == [Element((), 4.0)]
    assert len(calls) == 2


def test_a_session_keeps_its_selections_as_long_as_the_storage_says_so() -> None:
    class Known(Memory):
        generation = 1

    memory = Known()
    memory.add("m", [1] * 10)
    session = Session(memory)
    query = compile_query("m")
    for at_ms in (10_000, 20_000, 30_000):
        query.instant(memory, at_ms, session=session)
    assert memory.selections == 1
    memory.add("m", [2] * 10, i="new")
    memory.generation = 2
    value = query.instant(memory, 30_000, session=session)
    assert isinstance(value, list) and len(value) == 2


def test_a_session_told_of_new_samples_looks_again() -> None:
    memory = Memory()
    series = memory.add("m", [1, 2])
    session = Session(memory)
    query = compile_query("m")
    assert query.instant(memory, 15_000, session=session) == [Element(labels("m"), 2)]
    series.append(12_000, 3)
    session.changed()
    assert query.instant(memory, 15_000, session=session) == [Element(labels("m"), 3)]


def test_one_compiled_query_serves_several_storages_and_never_mixes_them() -> None:
    first, second = Memory(), Memory()
    first.add("m", [1], i="1")
    second.add("m", [2], i="2")
    query = compile_query("sum by (i) (m)")
    assert ask(first, query) == {labels(i="1"): 1}
    assert ask(second, query) == {labels(i="2"): 2}


def test_functions_are_told_where_their_arguments_stand_and_what_they_match() -> None:
    calls: list[Call] = []

    def evaluate(call: Call) -> list[Element]:
        calls.append(call)
        return []

    functions = {name: Function(name, evaluate) for name in ("histogram_quantile", "rate", "absent")}
    text = '1 + sum by (rate) (\n  histogram_quantile(0.9, rate(m{a="b",c!="d"}[5m]))) or absent((n)) or rate(m[5m:])'
    compile_query(text, functions=functions).instant(Memory(), 60_000)
    seen = [(call.texts, call.where, call.matchers) for call in calls]
    assert seen == [
        (('m{a="b",c!="d"}[5m]',), ("(2:32)",), (("a", "=", "b"), ("c", "!=", "d"), ("__name__", "=", "m"))),
        (("0.9", 'rate(m{a="b",c!="d"}[5m])'), ("(2:22)", "(2:27)"), ()),
        (("(n)",), ("(2:66)",), (("__name__", "=", "n"),)),
        (("m[5m:]",), ("(1:1)",), ()),
    ]
    assert {call.at_ms for call in calls} == {60_000}


def _delayed(memory: Memory, text: str, at_s: float) -> dict[Labels, float]:
    return ask(memory, compile_query(text, delayed_name_removal=True), at_s)


def test_delayed_name_removal_takes_names_off_at_the_end() -> None:
    memory = Memory()
    memory.add("a_total", [0, 10, 20], i="1")
    memory.add("b_total", [0, 20, 40], i="1")
    query = 'label_replace(rate({i="1"}[1m]), "was", "$1", "__name__", "(.+)_total")'
    assert set(_delayed(memory, query, 20)) == {labels(i="1", was="a"), labels(i="1", was="b")}
    with pytest.raises(QueryError, match="same labelset"):
        ask(memory, query, 20)
    with pytest.raises(QueryError, match="same labelset"):
        _delayed(memory, 'rate({i="1"}[1m])', 20)
    assert set(_delayed(memory, "sum by (__name__, i) (rate(a_total[1m]))", 20)) == {labels(i="1")}
    assert set(_delayed(memory, "a_total > 1", 20)) == {labels("a_total", i="1")}


def test_a_range_with_names_dropped_merges_series_that_do_not_overlap() -> None:
    memory = Memory()
    memory.add("a", {0: 1}, i="1")
    memory.add("b", {600: 4}, i="1")
    merged = {labels(i="1"): {0: -1, 600: -4}}
    assert ranged(memory, "-a or -b", 0, 600, 600) == merged
    value = compile_query("-a or -b", delayed_name_removal=True).range(memory, 0, 600_000, 600_000)
    assert [(span.labels, list(span.times), list(span.values)) for span in value.spans] == [
        (labels(i="1"), [0, 600_000], [-1, -4])
    ]
