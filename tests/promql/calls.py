"""Calls made by hand, so that functions are tested without the evaluator."""

from __future__ import annotations

from collections.abc import Sequence

from agent.series.data import NAME, Labels, Series, labels_of
from agent.series.promql.functions import FUNCTIONS
from agent.series.promql.value import Call, Element, Notes, Range, Span, Value, Vector


def labels(name: str = "", **pairs: str) -> Labels:
    return labels_of({NAME: name, **pairs})


def vector(*values: float, name: str = "m") -> Vector:
    """Elements told apart by the label ``i``."""
    return [Element(labels(name, i=str(index)), value) for index, value in enumerate(values)]


def span(values: Sequence[float], step_s: float = 10, first_s: float = 0, name: str = "m_total") -> Span:
    """A series of a sample every step, all of it within the window; resets as the store notes them."""
    series = Series(labels(name))
    for index, value in enumerate(values):
        series.append(int((first_s + index * step_s) * 1000), value)
    return Span(series.labels, series.times, series.values, 0, len(series.times), series.drops)


def window(*spans: Span, start_s: float, end_s: float) -> Range:
    return Range(spans, int(start_s * 1000), int(end_s * 1000))


def call(
    name: str,
    *arguments: Value,
    at_s: float = 0,
    notes: Notes | None = None,
    matchers: tuple[tuple[str, str, str], ...] = (),
    where: tuple[str, ...] = (),
) -> float | str | Vector:
    """What a function gives."""
    made = Call(arguments, int(at_s * 1000), notes or Notes(), matchers=matchers, where=where)
    return FUNCTIONS[name].evaluate(made)


def values(result: float | str | Vector) -> list[float]:
    assert isinstance(result, list)
    return [element.value for element in result]


def one(result: float | str | Vector) -> float:
    [value] = values(result)
    return value
