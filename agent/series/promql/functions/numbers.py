"""Floating point as Prometheus computes it, where Python raises, rounds or adds up differently.

In: floats. Out: floats. Python raises on a division by zero, on ``log(0)`` and on overflow; Prometheus gives NaN or an
infinity (IEEE 754). Sums are Kahan-Babuska sums in Neumaier's form, step by step as Prometheus does them (and not
``math.fsum``, whose better sum is another number). Nothing here knows of series or queries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from agent.series.promql.numbers import INF, NAN, compensated

SMALLEST_NORMAL = 2.2250738585072014e-308
LARGEST = 1.7976931348623157e308

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)


def total(compute: Callable[[float], float]) -> Callable[[float], float]:
    """``compute`` for all floats: NaN outside its domain; an overflow is an infinity, negative for odd functions."""

    def evaluate(value: float) -> float:
        try:
            return compute(value)
        except ValueError:
            return NAN
        except OverflowError:
            return -INF if value < 0 and compute(-1.0) < 0 else INF

    return evaluate


def larger(left: float, right: float) -> float:
    """The larger of two; NaN if one is NaN, unless the other is +Inf (Go's math.Max)."""
    if left == INF or right == INF:
        return INF
    if left != left or right != right:
        return NAN
    return max(left, right)


def smaller(left: float, right: float) -> float:
    """The smaller of two; NaN if one is NaN, unless the other is -Inf (Go's math.Min)."""
    if left == -INF or right == -INF:
        return -INF
    if left != left or right != right:
        return NAN
    return min(left, right)


def floor(value: float) -> float:
    """The largest integer not above ``value``; keeps infinities, NaN and the sign of zero."""
    return math.copysign(float(math.floor(value)), value) if math.isfinite(value) else value


def ceiling(value: float) -> float:
    """The smallest integer not below ``value``; keeps infinities, NaN and the sign of zero."""
    return math.copysign(float(math.ceil(value)), value) if math.isfinite(value) else value


def compensated_sum(values: Iterable[float]) -> float:
    """The compensated sum of all values, infinite where it overflows."""
    running = lost = 0.0
    for value in values:
        new = running + value
        if new in (INF, -INF):
            lost = 0.0
        elif abs(running) >= abs(value):
            lost += (running - new) + value
        else:
            lost += (value - new) + running
        running = new
    return running if running in (INF, -INF) else running + lost


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value: sum by count, or step by step from where the sum overflows."""
    running, lost = values[0], 0.0
    # The steps of `compensated`, written out: a window has thousands of samples.
    for index in range(1, len(values)):
        value = values[index]
        new = running + value
        if new in (INF, -INF):
            return _running_mean(values, index + 1, running / index, lost / index)
        if abs(running) >= abs(value):
            lost += (running - new) + value
        else:
            lost += (value - new) + running
        running = new
    return running / len(values) + lost / len(values)


def _running_mean(values: Sequence[float], first: int, average: float, lost: float) -> float:
    """The mean from the ``first``-th value on, which the sum of those before could not take."""
    for count in range(first, len(values) + 1):
        share = (count - 1) / count
        average, lost = compensated(values[count - 1] / count, share * average, share * lost)
    return average + lost


def variance(values: Sequence[float]) -> float:
    """The population variance of at least one value, by Welford's method with compensated sums."""
    average = average_lost = squares = squares_lost = 0.0
    for count, value in enumerate(values, 1):
        distance = value - (average + average_lost)
        average, average_lost = compensated(distance / count, average, average_lost)
        squares, squares_lost = compensated(distance * (value - (average + average_lost)), squares, squares_lost)
    return (squares + squares_lost) / len(values)


def quantile(q: float, values: Sequence[float]) -> float:
    """The q-quantile, weighted between two neighbours; NaN sorts first. -Inf below 0, +Inf above 1."""
    if not values or q != q:
        return NAN
    if q < 0:
        return -INF
    if q > 1:
        return INF
    numbers = sorted(value for value in values if value == value)
    ordered = [NAN] * (len(values) - len(numbers)) + numbers
    rank = q * (len(ordered) - 1)
    lower = math.floor(rank)
    upper = min(len(ordered) - 1, lower + 1)
    weight = rank - lower
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


def almost_equal(left: float, right: float, tolerance: float) -> bool:
    """Whether two numbers differ by less than their sum times ``tolerance`` (util/almost/almost.go)."""
    if left == right or (left != left and right != right):
        return True
    size = abs(left) + abs(right)
    distance = abs(left - right)
    if left == 0 or right == 0 or size < SMALLEST_NORMAL:
        return distance < tolerance * SMALLEST_NORMAL
    return distance / min(size, LARGEST) < tolerance


def parse_float(text: str) -> float | None:
    """The number that Go's strconv.ParseFloat reads, None where it refuses (also what is out of range)."""
    if _DECIMAL.fullmatch(text):
        value = float(text)
        return None if math.isinf(value) else value
    if _INFINITE.fullmatch(text):
        return -INF if text.startswith("-") else INF
    if text.lower() == "nan":
        return NAN
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return None
    return None
