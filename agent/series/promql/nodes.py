"""The nodes of a compiled query: literals, selectors, windows, subqueries, unary minus.

In: an :class:`~agent.series.promql.evaluation.Evaluation` (a storage and a moment). Out: a value. A node holds nothing
of an evaluation but memories of label operations, so one compiled query serves any number of moments and storages.
Windows are cut by bisection on the series' own lists; a copy is made only where a staleness marker lies in the window.

``kind`` is the type of what a node gives; ``key`` its canonical text, by which rules of one tick share results.
``nameless``: its elements stay distinct when their names are taken off, so nothing has to be checked for that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal

from agent.series.data import NAME, Labels, Match, Matcher, Series, is_stale
from agent.series.promql.errors import QueryError
from agent.series.promql.evaluation import SAME_LABELS, Evaluation, refuse_duplicates
from agent.series.promql.labels import Memo, without_name
from agent.series.promql.value import Element, Range, Span, Value, Vector

Kind = Literal["scalar", "string", "vector", "matrix"]
Moment = int | Literal["start", "end"] | None


class Node:
    """One expression. ``children`` in source order."""

    kind: Kind
    key: str
    nameless = False
    children: tuple[Node, ...] = ()

    def evaluate(self, ev: Evaluation) -> Value:
        """The value at ``ev.at_ms``; raises QueryError where Prometheus refuses."""
        raise NotImplementedError

    def vector(self, ev: Evaluation) -> Vector:
        """The same, where the compiler has seen to it that it is a vector."""
        value = self.evaluate(ev)
        assert isinstance(value, list)
        return value

    def scalar(self, ev: Evaluation) -> float:
        """The same, where the compiler has seen to it that it is a scalar."""
        value = self.evaluate(ev)
        assert isinstance(value, float)
        return value

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Number(Node):
    """A number literal."""

    kind: Kind = "scalar"
    nameless = True

    def __init__(self, value: float, key: str) -> None:
        self.value = value
        self.key = key

    def evaluate(self, ev: Evaluation) -> float:
        return self.value


class Text(Node):
    """A string literal."""

    kind: Kind = "string"

    def __init__(self, value: str, key: str) -> None:
        self.value = value
        self.key = key

    def evaluate(self, ev: Evaluation) -> str:
        return self.value


class When:
    """``@`` and ``offset``: at which moment a selector or subquery looks."""

    __slots__ = ("moment", "offset_ms")

    def __init__(self, moment: Moment, offset_ms: int) -> None:
        self.moment = moment
        self.offset_ms = offset_ms

    def at(self, ev: Evaluation) -> int:
        """Milliseconds since the epoch."""
        if self.moment is None:
            return ev.at_ms - self.offset_ms
        if self.moment == "start":
            return ev.start_ms - self.offset_ms
        if self.moment == "end":
            return ev.end_ms - self.offset_ms
        return self.moment - self.offset_ms


class Selector(Node):
    """An instant vector selector: of each series the last sample within the lookback, unless it is gone."""

    kind: Kind = "vector"

    def __init__(self, matchers: Sequence[Matcher], when: When, select_key: str, key: str) -> None:
        self.matchers = matchers
        self.when = when
        self.select_key = select_key
        self.key = key
        self.nameless = any(matcher.name == NAME and matcher.match is Match.EQUAL for matcher in matchers)

    def evaluate(self, ev: Evaluation) -> Vector:
        if ev.found is None:
            return [Element(labels, value) for labels, _, value in self.samples(ev)]
        value = ev.shared(self.key, self._vector)
        assert isinstance(value, list)
        return value

    def _vector(self, ev: Evaluation) -> Vector:
        return [Element(labels, value) for labels, _, value in self.samples(ev)]

    def series(self, ev: Evaluation) -> Sequence[Series]:
        """All that match, whole."""
        return ev.select(self.select_key, self.matchers)

    def samples(self, ev: Evaluation) -> Iterator[tuple[Labels, int, float]]:
        """Labels, time and value of each sample; one exactly as old as the lookback is too old (Prometheus 3)."""
        at_ms = self.when.at(ev)
        oldest = at_ms - ev.lookback_ms
        for series in self.series(ev):
            times = series.times
            if not times:
                continue
            index = len(times) - 1 if times[-1] <= at_ms else bisect_right(times, at_ms) - 1
            if index < 0 or times[index] <= oldest:
                continue
            value = series.values[index]
            if value != value and series.stale and is_stale(value):
                continue
            yield series.labels, times[index], value


class Window(Node):
    """A range vector selector: of each series the samples in ``(end - range, end]``."""

    kind: Kind = "matrix"

    def __init__(self, selector: Selector, range_ms: int, key: str) -> None:
        self.selector = selector
        self.range_ms = range_ms
        self.key = key
        self.nameless = selector.nameless
        self.children = (selector,)

    def evaluate(self, ev: Evaluation) -> Range:
        value = ev.shared(self.key, self._range)
        assert isinstance(value, Range)
        return value

    def _range(self, ev: Evaluation) -> Range:
        end_ms = self.selector.when.at(ev)
        start_ms = end_ms - self.range_ms
        spans = []
        for series in self.selector.series(ev):
            times = series.times
            if not times or times[-1] <= start_ms:
                continue
            high = len(times) if times[-1] <= end_ms else bisect_right(times, end_ms)
            low = bisect_right(times, start_ms, 0, high)
            if low == high:
                continue
            if not series.stale:
                spans.append(Span(series.labels, times, series.values, low, high, series.drops))
            elif (span := _living(series, low, high)) is not None:
                spans.append(span)
        return Range(spans, start_ms, end_ms)


def _living(series: Series, low: int, high: int) -> Span | None:
    """The window without staleness markers, or None when nothing else is in it."""
    values = series.values[low:high]
    gone: set[int] = set()
    if math.isnan(sum(values)):
        gone = {index for index, value in enumerate(values) if value != value and is_stale(value)}
    if not gone:
        return Span(series.labels, series.times, series.values, low, high, series.drops)
    times = [time for index, time in enumerate(series.times[low:high]) if index not in gone]
    kept = [value for index, value in enumerate(values) if index not in gone]
    return Span(series.labels, times, kept, 0, len(times), series.drops) if times else None


class Subquery(Node):
    """An expression evaluated at steps that are multiples of the step, whatever the moment of the query."""

    kind: Kind = "matrix"

    def __init__(self, inner: Node, range_ms: int, step_ms: int | None, when: When, key: str) -> None:
        self.inner = inner
        self.range_ms = range_ms
        self.step_ms = step_ms
        self.when = when
        self.key = key
        self.nameless = inner.nameless
        self.children = (inner,)

    def evaluate(self, ev: Evaluation) -> Range:
        value = ev.shared(self.key, self._range)
        assert isinstance(value, Range)
        return value

    def _range(self, ev: Evaluation) -> Range:
        step_ms = self.step_ms or ev.interval_ms
        end_ms = self.when.at(ev)
        start_ms = end_ms - self.range_ms
        first = (start_ms // step_ms + 1) * step_ms
        spans = stepped(self.inner, ev, range(first, end_ms + 1, step_ms))
        return Range(spans, start_ms, end_ms)


def stepped(node: Node, ev: Evaluation, steps: range) -> list[Span]:
    """The series that an expression gives over steps; raises QueryError on one label set twice at one step."""
    inner = ev.stepping()
    spans: dict[Labels, tuple[list[int], list[float], bool]] = {}
    for at_ms in steps:
        inner.at_ms = at_ms
        value = node.evaluate(inner)
        vector = [Element((), value)] if isinstance(value, float) else value
        assert isinstance(vector, list)
        for labels, number, drop_name in vector:
            known = spans.get(labels)
            if known is None:
                known = spans[labels] = ([], [], drop_name)
            elif known[0][-1] == at_ms:
                raise QueryError(SAME_LABELS)
            known[0].append(at_ms)
            known[1].append(number)
    return [
        Span(labels, times, values, 0, len(times), None, drop_name)
        for labels, (times, values, drop_name) in spans.items()
    ]


class Negation(Node):
    """Unary minus."""

    nameless = True

    def __init__(self, inner: Node, key: str, *, delayed: bool) -> None:
        self.inner = inner
        self.kind = inner.kind
        self.key = key
        self.children = (inner,)
        self._delayed = delayed
        self._named = Memo(without_name)

    def evaluate(self, ev: Evaluation) -> float | Vector:
        value = self.inner.evaluate(ev)
        if isinstance(value, float):
            return -value
        assert isinstance(value, list)
        if self._delayed:
            return [Element(labels, -number, True) for labels, number, _ in value]
        named = self._named
        result = [Element(named[labels], -number) for labels, number, _ in value]
        if not self.inner.nameless:
            refuse_duplicates(result)
        return result
