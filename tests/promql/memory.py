"""A storage of a few series, and queries on it at seconds since the epoch, for the tests of the evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.series.data import NAME, STALE, Labels, Match, Matcher, Series, labels_of
from agent.series.promql import Notes, Query, Range, Vector, compile_query

GONE = STALE


def labels(name: str = "", **pairs: str) -> Labels:
    return labels_of({NAME: name, **pairs})


class Memory:
    """``selections`` counts how often series were chosen. ``generation`` is there only where a test sets it."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.selections = 0

    def add(
        self, name: str, values: Sequence[float | None] | Mapping[int, float], step_s: float = 10, **pairs: str
    ) -> Series:
        """Samples every step from 0 on, None left out; or by their seconds."""
        series = Series(labels(name, **pairs))
        points = values.items() if isinstance(values, Mapping) else ((i * step_s, v) for i, v in enumerate(values))
        for seconds, value in points:
            if value is not None:
                series.append(round(seconds * 1000), value)
        self.series.append(series)
        return series

    def select(self, matchers: Sequence[Matcher]) -> list[Series]:
        self.selections += 1
        return [series for series in self.series if all(_holds(series.labels, matcher) for matcher in matchers)]


def _holds(pairs: Labels, matcher: Matcher) -> bool:
    value = dict(pairs).get(matcher.name, "")
    pattern = matcher.test()
    if pattern is None:
        return (value == matcher.value) is (matcher.match is Match.EQUAL)
    return (pattern.match(value) is not None) is (matcher.match is Match.REGEX)


def ask(
    memory: Memory, query: str | Query, at_s: float = 0, notes: Notes | None = None, **options: int
) -> dict[Labels, float]:
    """The vector at a moment, by labels; the order is that of the result."""
    value = asked(memory, query, at_s, notes, **options)
    return {element.labels: element.value for element in value}


def asked(memory: Memory, query: str | Query, at_s: float = 0, notes: Notes | None = None, **options: int) -> Vector:
    compiled = compile_query(query) if isinstance(query, str) else query
    value = compiled.instant(memory, round(at_s * 1000), notes=notes, **options)
    assert isinstance(value, list)
    return value


def number(memory: Memory, query: str, at_s: float = 0) -> float:
    value = compile_query(query).instant(memory, round(at_s * 1000))
    assert isinstance(value, float)
    return value


def ranged(memory: Memory, query: str, start_s: float, end_s: float, step_s: float) -> dict[Labels, dict[float, float]]:
    """Values by labels and seconds."""
    value = compile_query(query).range(memory, *(round(seconds * 1000) for seconds in (start_s, end_s, step_s)))
    return points(value)


def points(value: Range) -> dict[Labels, dict[float, float]]:
    return {
        span.labels: {span.times[index] / 1000: span.values[index] for index in range(span.lo, span.hi)}
        for span in value.spans
    }
