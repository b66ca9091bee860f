"""Aggregations: one value of many (``sum``), a choice among many (``topk``), a count of values (``count_values``).

Sums are Kahan's in Neumaier's form, a mean goes over to an incremental one where its sum would overflow, a NaN is the
smallest of all for ``topk``, ``bottomk`` and ``quantile`` and loses to every number in ``min`` and ``max``: all as in
promql/engine.go of Prometheus 3, because a rule that compares for equality sees the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agent.series.data import NAME
from agent.series.promql.choice import chosen
from agent.series.promql.errors import QueryError
from agent.series.promql.evaluation import Evaluation
from agent.series.promql.functions.numbers import mean, quantile
from agent.series.promql.labels import Numbers, dropping, keeping, quoted, replaced
from agent.series.promql.nodes import Node, Text
from agent.series.promql.numbers import NAN, compensated, decimal, shortest
from agent.series.promql.value import Element, Value, Vector

MOST = 9223372036854774784.0
LEAST = -9223372036854775808.0


def total(values: Sequence[float]) -> float:
    """``sum``."""
    value, error = values[0], 0.0
    for number in values[1:]:
        value, error = compensated(number, value, error)
    return value + error


def lowest(values: Sequence[float]) -> float:
    """``min``: NaN only when there is nothing else."""
    numbers = [value for value in values if value == value]
    return min(numbers) if numbers else NAN


def highest(values: Sequence[float]) -> float:
    """``max``: NaN only when there is nothing else."""
    numbers = [value for value in values if value == value]
    return max(numbers) if numbers else NAN


def variance(values: Sequence[float]) -> float:
    """``stdvar``, by Welford."""
    average = values[0]
    squares = 0.0 if math.isfinite(average) else NAN
    for count, value in enumerate(values[1:], 2):
        delta = value - average
        average += delta / count
        squares += delta * (value - average)
    return squares / len(values)


def deviation(values: Sequence[float]) -> float:
    """``stddev``."""
    return math.sqrt(variance(values))


REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": total,
    "avg": mean,
    "count": lambda values: float(len(values)),
    "min": lowest,
    "max": highest,
    "group": lambda values: 1.0,
    "stddev": deviation,
    "stdvar": variance,
}


class Grouping:
    """``by`` or ``without`` some labels; without either, all are one group."""

    def __init__(self, names: Sequence[str], *, without: bool) -> None:
        self.names = tuple(names)
        self.without = without
        self.reduce = dropping(names) if without else keeping(names)
        self.nameless = without or NAME not in names


class Reduction(Node):
    """An aggregation that makes one value of each group."""

    kind = "vector"

    def __init__(
        self, operator: str, inner: Node, param: Node | None, grouping: Grouping, key: str, *, where: str, delayed: bool
    ) -> None:
        self.operator = operator
        self.param = param
        self.children = (inner,) if param is None else (param, inner)
        self.key = key
        self.nameless = grouping.nameless
        self._inner = inner
        self._where = where
        self._delayed = delayed
        self._groups = Numbers(grouping.reduce)

    def evaluate(self, ev: Evaluation) -> Value:
        return ev.shared(self.key, self._reduce)

    def _reduce(self, ev: Evaluation) -> Vector:
        reduction = REDUCTIONS[self.operator] if self.param is None else self._quantile(ev, self.param)
        vector = self._inner.vector(ev)
        numbers = self._groups
        numbers.tidy()
        groups: dict[int, list[float]] = {}
        for element in vector:
            group = numbers[element[0]]
            known = groups.get(group)
            if known is None:
                groups[group] = [element[1]]
            else:
                known.append(element[1])
        labels = numbers.results
        if not self._delayed:
            return [Element(labels[group], reduction(values)) for group, values in groups.items()]
        dropped = {numbers[element.labels] for element in vector if element.drop_name}
        return [Element(labels[group], reduction(values), group in dropped) for group, values in groups.items()]

    def _quantile(self, ev: Evaluation, param: Node) -> Callable[[Sequence[float]], float]:
        share = param.scalar(ev)
        if not 0 <= share <= 1:
            problem = f"quantile value should be between 0 and 1, got {shortest(share)}"
            ev.notes.warn(f"PromQL warning: {problem} {self._where}".rstrip())
        return lambda values: quantile(share, values)


class Choice(Node):
    """``topk`` and ``bottomk``: the elements themselves, ordered within each group."""

    kind = "vector"

    def __init__(self, operator: str, inner: Node, param: Node, grouping: Grouping, key: str) -> None:
        self.operator = operator
        self.children = (param, inner)
        self.key = key
        self.nameless = inner.nameless
        self._groups = Numbers(grouping.reduce)

    def evaluate(self, ev: Evaluation) -> Vector:
        param, inner = self.children
        wanted = param.scalar(ev)
        vector = inner.vector(ev)
        if wanted < 1:
            return []
        _refuse(wanted)
        count = int(wanted)
        numbers = self._groups
        numbers.tidy()
        groups: dict[int, Vector] = {}
        for element in vector:
            groups.setdefault(numbers[element[0]], []).append(element)
        result: Vector = []
        for members in groups.values():
            result += chosen(members, min(count, len(vector)), highest=self.operator == "topk")
        return result


def _refuse(wanted: float) -> None:
    """Raise QueryError on a number of elements that is none."""
    if wanted != wanted:
        raise QueryError("Parameter value is NaN")
    if wanted <= LEAST:
        raise QueryError(f"Scalar value {shortest(wanted)} underflows int64")
    if wanted >= MOST:
        raise QueryError(f"Scalar value {shortest(wanted)} overflows int64")


class CountValues(Node):
    """``count_values``: how often each value is there, the value as a label."""

    kind = "vector"

    def __init__(self, inner: Node, label: Text, grouping: Grouping, key: str) -> None:
        self.children = (label, inner)
        self.key = key
        self._label = label.value
        names = grouping.names if grouping.without else (*grouping.names, label.value)
        self._reduce = dropping(names) if grouping.without else keeping(names)
        self.nameless = grouping.without or NAME not in names

    def evaluate(self, ev: Evaluation) -> Vector:
        if not self._label or any(0xD800 <= ord(char) <= 0xDFFF for char in self._label):
            raise QueryError(f"invalid label name {quoted(self._label)}")
        counts: dict[tuple[tuple[str, str], ...], int] = {}
        for element in self.children[1].vector(ev):
            labels = self._reduce(replaced(element.labels, {self._label: decimal(element.value)}))
            counts[labels] = counts.get(labels, 0) + 1
        return [Element(labels, float(count)) for labels, count in counts.items()]
