"""Functions of single values, of labels and of time: domains, rounding, templates, the calendar."""

from __future__ import annotations

import datetime
import math

import pytest

from agent.series.promql.errors import QueryError
from agent.series.promql.functions import FUNCTIONS
from agent.series.promql.value import Call, Element, Notes
from tests.promql.calls import call, labels, one, values, vector

NAN, INF = math.nan, math.inf
ODD = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e308, -1e308, 5e-324, 1e20, INF, -INF, NAN, 709.0, 710.0, 2.0**63)
POINTWISE = (
    "abs ceil floor exp sqrt ln log2 log10 sgn sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh rad deg"
    " round year month day_of_month day_of_week day_of_year days_in_month hour minute timestamp"
)


@pytest.mark.parametrize("name", POINTWISE.split())
def test_every_float_has_a_value(name: str):
    assert len(values(call(name, vector(*ODD)))) == len(ODD)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("exp", 710.0, INF), ("ln", 0.0, -INF), ("ln", -1.0, NAN), ("log2", 0.0, -INF), ("log10", 1000.0, 3),
        ("sqrt", -1.0, NAN), ("sin", INF, NAN), ("acosh", 0.5, NAN), ("atanh", 1.0, INF), ("atanh", -1.0, -INF),
        ("atanh", 2.0, NAN), ("sinh", -1000.0, -INF), ("sinh", 1000.0, INF), ("cosh", -1000.0, INF),
        ("deg", math.pi, 180), ("floor", -INF, -INF), ("ceil", 2.1, 3), ("floor", -2.5, -3), ("sgn", -0.1, -1),
        ("sgn", NAN, NAN), ("rad", 180.0, math.pi), ("abs", -INF, INF),
    ],
)  # fmt: skip
def test_domains(name: str, value: float, expected: float):
    assert one(call(name, vector(value))) == pytest.approx(expected, nan_ok=True)


def test_zero_keeps_its_sign():
    assert math.copysign(1, one(call("ceil", vector(-0.5)))) == -1
    assert math.copysign(1, one(call("floor", vector(-0.0)))) == -1


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [
        (2.5, 1.0, 3),
        (-2.5, 1.0, -2),
        (0.25, 0.1, 0.3),
        (17.0, 5.0, 15),
        (3.0, 0.0, NAN),
        (NAN, 1.0, NAN),
        (INF, 1.0, INF),
    ],
)
def test_round_goes_up_at_the_half(value: float, step: float, expected: float):
    assert one(call("round", vector(value), step)) == pytest.approx(expected, nan_ok=True)


def test_clamps():
    assert values(call("clamp", vector(-50, 0, 100), -25.0, 75.0)) == [-25, 0, 75]
    assert values(call("clamp_min", vector(-50, 100), -25.0)) == [-25, 100]
    assert values(call("clamp_max", vector(-50, 100), 75.0)) == [-50, 75]
    assert call("clamp", vector(1), 5.0, -5.0) == []
    assert math.isnan(one(call("clamp", vector(1), 0.0, NAN)))
    assert math.isnan(one(call("clamp_min", vector(NAN), 0.0)))


def test_sorting_puts_nan_last():
    assert values(call("sort", vector(3, NAN, 1)))[:2] == [1, 3]
    assert values(call("sort_desc", vector(1, NAN, 3)))[:2] == [3, 1]


def test_scalars_and_vectors():
    assert call("scalar", vector(7)) == 7
    assert math.isnan(call("scalar", vector(7, 8)))  # type: ignore[arg-type]
    assert math.isnan(call("scalar", []))  # type: ignore[arg-type]
    assert call("vector", 3.0) == [Element((), 3.0)]
    assert call("pi") == math.pi
    assert call("time", at_s=1.5) == 1.5


@pytest.mark.parametrize(
    ("template", "pattern", "expected"),
    [
        ("to-$1", "from-(.*)", "to-ten"),
        ("${1}0", "from-(.*)", "ten0"),
        ("$10", "from-(.*)", ""),
        ("$x$$", "from-(?P<x>.*)", "ten$"),
        ("$1_y", "from-(.*)", ""),
        ("$", "from-(.*)", "$"),
        ("$2|$9", "from-(ten)(x)?", "|"),
        ("z", "rom-ten", None),
    ],
)
def test_label_replace_expands_as_go_does(template: str, pattern: str, expected: str | None):
    source = [Element(labels("m", src="from-ten", dst="old"), 1.0)]
    [element] = call("label_replace", source, "dst", template, "src", pattern)  # type: ignore[misc,str-unpack]
    assert dict(element.labels).get("dst", "") == ("old" if expected is None else expected)
    assert source[0].labels == labels("m", src="from-ten", dst="old")


def test_labels_that_become_empty_go():
    source = [Element(labels("m", a="1"), 1.0)]
    assert call("label_replace", source, "a", "", "a", ".*") == [Element(labels("m"), 1.0)]
    assert call("label_join", source, "b", "-", "a", "none", "a") == [Element(labels("m", a="1", b="1--1"), 1.0)]


def test_a_name_that_the_query_gives_stays():
    source = [Element(labels("m", a="1"), 1.0, drop_name=True)]
    [named] = call("label_replace", source, "__name__", "new", "", "")  # type: ignore[misc,str-unpack]
    [other] = call("label_replace", source, "b", "new", "", "")  # type: ignore[misc,str-unpack]
    assert (named.drop_name, other.drop_name) == (False, True)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("label_replace", ("dst", "", "src", "(.*"), "invalid regular expression in label_replace(): (.*"),
        ("label_replace", ("\udcff", "", "src", ".*"), "invalid destination label name in label_replace(): \udcff"),
        ("label_replace", ("", "", "src", ".*"), "invalid destination label name in label_replace(): "),
        ("label_join", ("", "-", "a"), "invalid destination label name in label_join(): "),
        ("label_join", ("dst", "-", ""), "invalid source label name in label_join(): "),
    ],
)
def test_what_prometheus_refuses_is_refused(name: str, arguments: tuple[str, ...], message: str):
    with pytest.raises(QueryError) as refused:
        call(name, vector(1), *arguments)
    assert str(refused.value) == message


def test_a_wrong_argument_is_an_error_of_the_query():
    with pytest.raises(QueryError, match="range vector"):
        call("rate", vector(1))


@pytest.mark.parametrize("seconds", [0, 951_782_400, 1_456_790_399, 1_456_790_400, 1_483_191_420, -1, -62_135_596_800])
def test_the_calendar_is_pythons(seconds: int):
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    asked = {
        "year": moment.year,
        "month": moment.month,
        "day_of_month": moment.day,
        "day_of_year": moment.timetuple().tm_yday,
        "day_of_week": moment.isoweekday() % 7,
        "hour": moment.hour,
        "minute": moment.minute,
    }
    for name, expected in asked.items():
        assert one(call(name, vector(float(seconds)))) == expected, name
        assert one(call(name, at_s=seconds)) == expected, name


@pytest.mark.parametrize(
    ("month", "days"), [("2016-02-01", 29), ("1900-02-01", 28), ("2000-02-01", 29), ("2017-04-30", 30)]
)
def test_days_in_month(month: str, days: int):
    seconds = (datetime.datetime.fromisoformat(month) - datetime.datetime(1970, 1, 1)).total_seconds()
    assert one(call("days_in_month", vector(seconds))) == days


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e19])
def test_what_is_no_time_has_the_date_that_prometheus_gives_it(value: float):
    parts = [one(call(name, vector(value))) for name in ("year", "month", "day_of_month", "hour", "minute")]
    assert parts == [292277026596, 12, 4, 15, 30]


def test_the_time_of_a_sample_where_the_evaluator_knows_it():
    elements = vector(5, 6)
    known = Call((elements,), 60_000, Notes(), times=(50_000, 55_500))
    assert values(FUNCTIONS["timestamp"].evaluate(known)) == [50, 55.5]
    assert values(call("timestamp", elements, at_s=60)) == [60, 60]
