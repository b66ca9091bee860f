"""One number for the samples of a window: the ``*_over_time`` functions.

In: windows of series. Out: one element for each series that has a sample in its window; absent_over_time alone answers
for series that have none. Sums and means are compensated as Prometheus compensates them, so the last digits agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from agent.series.promql.functions.annotations import check_quantile
from agent.series.promql.functions.arguments import number, window
from agent.series.promql.functions.numbers import compensated_sum, mean, quantile, total, variance
from agent.series.promql.functions.vectors import absent_labels
from agent.series.promql.value import Call, Element, Function, Vector


def _largest(values: Sequence[float]) -> float:
    """The largest number; NaN only where there is nothing else."""
    best = max(values)
    # Nothing is larger than NaN: one at the start stays, one further on is passed over.
    return best if best == best else max((value for value in values if value == value), default=best)


def _smallest(values: Sequence[float]) -> float:
    """The smallest number; NaN only where there is nothing else."""
    best = min(values)
    return best if best == best else min((value for value in values if value == value), default=best)


def _each(reduce: Callable[[Sequence[float]], float]) -> Callable[[Call], Vector]:
    """A function that reduces the values of every window to one."""

    def evaluate(call: Call) -> Vector:
        spans = window(call).spans
        return [Element(span.labels, reduce(span.points()), span.drop_name) for span in spans if len(span)]

    return evaluate


def _count(call: Call) -> Vector:
    return [Element(span.labels, float(len(span)), span.drop_name) for span in window(call).spans if len(span)]


def _present(call: Call) -> Vector:
    return [Element(span.labels, 1.0, span.drop_name) for span in window(call).spans if len(span)]


def _last(call: Call) -> Vector:
    spans = window(call).spans
    return [Element(span.labels, span.values[span.hi - 1], span.drop_name) for span in spans if len(span)]


def _absent(call: Call) -> Vector:
    if any(len(span) for span in window(call).spans):
        return []
    return [Element(absent_labels(call.matchers), 1.0)]


def _quantile(call: Call) -> Vector:
    q = number(call, 0)
    spans = [span for span in window(call, 1).spans if len(span)]
    if spans:
        check_quantile(call, 0, q)
    return [Element(span.labels, quantile(q, span.points()), span.drop_name) for span in spans]


_ROOT = total(math.sqrt)

_EVALUATORS: Mapping[str, Callable[[Call], Vector]] = {
    "avg_over_time": _each(mean),
    "count_over_time": _count,
    "max_over_time": _each(_largest),
    "min_over_time": _each(_smallest),
    "present_over_time": _present,
    "quantile_over_time": _quantile,
    "stddev_over_time": _each(lambda values: _ROOT(variance(values))),
    "stdvar_over_time": _each(variance),
    "sum_over_time": _each(compensated_sum),
    "absent_over_time": _absent,
}
WINDOWS: Mapping[str, Function] = {
    **{name: Function(name, evaluate) for name, evaluate in _EVALUATORS.items()},
    "last_over_time": Function("last_over_time", _last, drops_name=False),
}
