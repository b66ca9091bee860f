"""How a series moves within a window: rate, increase, delta, irate, idelta, deriv, predict_linear, changes, resets.

In: windows of series. Out: one element for each series that has enough samples (two, or one for changes and resets).
rate, increase and delta read the two ends of a window and the known counter resets, never all of its samples, so a
rule over an hour costs as little as one over a minute. The extrapolation towards the edges of the window is that of
Prometheus 3 (promql/functions.go, extrapolatedRate): a sample within 1.1 mean intervals of an edge reaches to the edge,
others by half an interval, and a counter never to below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isinf

from agent.series.promql.functions.annotations import possible_non_counter
from agent.series.promql.functions.arguments import number, window
from agent.series.promql.numbers import NAN, divide
from agent.series.promql.value import Call, Element, Function, Span, Vector

EXTRAPOLATION = 1.1


def _rate(call: Call) -> Vector:
    return _extrapolated(call, counter=True, per_second=True)


def _increase(call: Call) -> Vector:
    return _extrapolated(call, counter=True, per_second=False)


def _delta(call: Call) -> Vector:
    return _extrapolated(call, counter=False, per_second=False)


def _extrapolated(call: Call, *, counter: bool, per_second: bool) -> Vector:
    spans, start, end = window(call)
    divisor = (end - start) / 1000 if per_second else 1.0
    out = []
    for span in spans:
        last = span.hi - 1
        if last <= span.lo:
            continue
        values = span.values
        change = values[last] - values[span.lo]
        if counter:
            for index in span.resets():
                change += values[index - 1]
            possible_non_counter(call, span.labels)
        value = change * _factor(span, start, end, change if counter else 0.0, divisor)
        out.append(Element(span.labels, value, span.drop_name))
    return out


def _factor(span: Span, start: int, end: int, rise: float, divisor: float) -> float:
    """How much longer the window is than its samples; ``rise`` of a counter bounds it by the counter's zero."""
    first, last = span.times[span.lo], span.times[span.hi - 1]
    to_start, to_end = (first - start) / 1000, (end - last) / 1000
    sampled = (last - first) / 1000
    interval = sampled / (span.hi - 1 - span.lo)
    if to_start >= interval * EXTRAPOLATION:
        to_start = interval / 2
    if rise > 0 and span.values[span.lo] >= 0:
        to_zero = sampled * (span.values[span.lo] / rise)
        if to_zero < to_start:
            to_start = to_zero
    if to_end >= interval * EXTRAPOLATION:
        to_end = interval / 2
    return (sampled + to_start + to_end) / sampled / divisor


def _irate(call: Call) -> Vector:
    out = []
    for span in window(call).spans:
        if len(span) < 2:
            continue
        before, after = span.values[span.hi - 2], span.values[span.hi - 1]
        seconds = (span.times[span.hi - 1] - span.times[span.hi - 2]) / 1000
        # After a reset the counter began at zero, so it rose by all that it shows.
        rise = after if after < before else after - before
        out.append(Element(span.labels, rise / seconds, span.drop_name))
    return out


def _idelta(call: Call) -> Vector:
    return [
        Element(span.labels, span.values[span.hi - 1] - span.values[span.hi - 2], span.drop_name)
        for span in window(call).spans
        if len(span) >= 2
    ]


def _deriv(call: Call) -> Vector:
    # The first sample's time as origin keeps the figures small: https://github.com/prometheus/prometheus/issues/2674
    return [
        Element(span.labels, _regression(span, span.times[span.lo])[0], span.drop_name)
        for span in window(call).spans
        if len(span) >= 2
    ]


def _predict_linear(call: Call) -> Vector:
    seconds = number(call, 1)
    out = []
    for span in window(call).spans:
        if len(span) >= 2:
            slope, intercept = _regression(span, call.at_ms)
            out.append(Element(span.labels, slope * seconds + intercept, span.drop_name))
    return out


def _regression(span: Span, origin_ms: int) -> tuple[float, float]:
    """Least squares: the slope a second, and the value at ``origin_ms``."""
    values = span.points()
    if all(value == values[0] for value in values[1:]):
        return (NAN, NAN) if isinf(values[0]) else (0.0, values[0])
    x = y = xy = xx = x_lost = y_lost = xy_lost = xx_lost = 0.0
    # The steps of `compensated`, written out (times stay finite, values need not): a window has hundreds of samples.
    for time, value in zip(span.times[span.lo : span.hi], values, strict=True):
        seconds = (time - origin_ms) / 1000
        new = x + seconds
        x_lost += (x - new) + seconds if abs(x) >= abs(seconds) else (seconds - new) + x
        x = new
        new = y + value
        lost = (y - new) + value if abs(y) >= abs(value) else (value - new) + y
        y_lost = y_lost + lost if new - new == 0.0 else 0.0
        y = new
        add = seconds * value
        new = xy + add
        lost = (xy - new) + add if abs(xy) >= abs(add) else (add - new) + xy
        xy_lost = xy_lost + lost if new - new == 0.0 else 0.0
        xy = new
        add = seconds * seconds
        new = xx + add
        xx_lost += (xx - new) + add if abs(xx) >= abs(add) else (add - new) + xx
        xx = new
    count = float(len(values))
    x, y, xy, xx = x + x_lost, y + y_lost, xy + xy_lost, xx + xx_lost
    slope = divide(xy - x * y / count, xx - x * x / count)
    return slope, y / count - slope * x / count


def _changes(call: Call) -> Vector:
    return [Element(span.labels, _count_changes(span), span.drop_name) for span in window(call).spans if len(span)]


def _count_changes(span: Span) -> float:
    values = span.points()
    # NaN differs from itself; one NaN after another is no change.
    pairs = pairwise(values)
    return float(sum(1 for old, new in pairs if new != old and (new == new or old == old)))


def _resets(call: Call) -> Vector:
    return [Element(span.labels, float(len(span.resets())), span.drop_name) for span in window(call).spans if len(span)]


_EVALUATORS: Mapping[str, Callable[[Call], Vector]] = {
    "rate": _rate,
    "increase": _increase,
    "delta": _delta,
    "irate": _irate,
    "idelta": _idelta,
    "deriv": _deriv,
    "predict_linear": _predict_linear,
    "changes": _changes,
    "resets": _resets,
}
RATES: Mapping[str, Function] = {name: Function(name, evaluate) for name, evaluate in _EVALUATORS.items()}
