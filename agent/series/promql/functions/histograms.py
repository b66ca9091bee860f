"""Quantiles and fractions of classic histograms: histogram_quantile and histogram_fraction.

In: an instant vector of cumulative buckets, each with its upper bound in the label ``le``. Out: one element for each
histogram, under its labels without ``le``. Within a bucket observations count as spread evenly. Buckets that a race
left smaller than a smaller bucket are raised to it, with an info; differences that are mere rounding are taken away
without a word (promql/quantile.go). Native histograms are none of this evaluator's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from agent.series.data import Labels
from agent.series.promql.functions.annotations import bad_bucket_label, check_quantile, forced_monotonicity, name_of
from agent.series.promql.functions.arguments import number, vector
from agent.series.promql.functions.numbers import almost_equal, parse_float
from agent.series.promql.numbers import INF, NAN, divide
from agent.series.promql.value import Call, Element, Function, Vector

BOUND = "le"
ROUNDING = 1e-12


class _Histogram:
    """Cumulative counts by rising upper bound."""

    __slots__ = ("bounds", "counts")

    def __init__(self, buckets: list[tuple[float, float]]) -> None:
        self.bounds: list[float] = []
        self.counts: list[float] = []
        for bound, count in sorted(buckets, key=lambda bucket: bucket[0]):
            # "0.2" and "2e-1" are one bucket that came as two series.
            if self.bounds and bound == self.bounds[-1]:
                self.counts[-1] += count
            else:
                self.bounds.append(bound)
                self.counts.append(count)

    @property
    def complete(self) -> bool:
        """Whether there is a bucket for everything."""
        return self.bounds[-1] == INF

    def make_monotonic(self) -> bool:
        """Let no bucket hold less than a smaller one; whether more than rounding was at fault."""
        forced = False
        counts = self.counts
        for index in range(1, len(counts)):
            before, count = counts[index - 1], counts[index]
            if count == before:
                continue
            if almost_equal(before, count, ROUNDING):
                counts[index] = before
            elif count < before:
                counts[index] = before
                forced = True
        return forced

    def quantile(self, q: float) -> float:
        """The value below which the share ``q`` lies; NaN for an empty histogram."""
        counts, bounds = self.counts, self.bounds
        if len(counts) < 2 or counts[-1] == 0:
            return NAN
        rank = q * counts[-1]
        index = bisect_left(counts, rank, 0, len(counts) - 1)
        if index == len(counts) - 1:
            return bounds[-2]
        if index == 0 and bounds[0] <= 0:
            return bounds[0]
        start = bounds[index - 1] if index else 0.0
        below = counts[index - 1] if index else 0.0
        return start + (bounds[index] - start) * divide(rank - below, counts[index] - below)

    def fraction(self, lower: float, upper: float) -> float:
        """The share of the observations between two values; NaN for an empty histogram."""
        count = self.counts[-1]
        if count == 0 or lower != lower or upper != upper:
            return NAN
        if lower >= upper:
            return 0.0
        return divide(self._rank(upper) - self._rank(lower), count)

    def _rank(self, value: float) -> float:
        """How many observations lie below ``value``."""
        below = 0.0
        start = 0.0 if self.bounds[0] > 0 else -INF
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if start >= value:
                return min(below, self.counts[-1])
            if bound > value:
                # A bucket without a lower end gives all that it has.
                inside = count if start == -INF else below + (count - below) * (value - start) / (bound - start)
                return inside if not inside > self.counts[-1] else self.counts[-1]
            below, start = count, bound
        return self.counts[-1]


def _quantile(call: Call) -> Vector:
    q = number(call, 0)
    check_quantile(call, 0, q)
    out = []
    for labels, histogram in _histograms(call, 1):
        out.append(Element(labels, _quantile_of(call, q, labels, histogram)))
    return out


def _quantile_of(call: Call, q: float, labels: Labels, histogram: _Histogram) -> float:
    if q != q or not histogram.complete:
        return NAN if q != q or 0 <= q <= 1 else _outside(q)
    if not 0 <= q <= 1:
        return _outside(q)
    if histogram.make_monotonic():
        # Where names go at once, the name is gone by now.
        forced_monotonicity(call, 1, name_of(labels) if call.delayed else "")
    return histogram.quantile(q)


def _outside(q: float) -> float:
    return -INF if q < 0 else INF


def _fraction(call: Call) -> Vector:
    lower, upper = number(call, 0), number(call, 1)
    return [
        Element(labels, histogram.fraction(lower, upper) if histogram.complete else NAN)
        for labels, histogram in _histograms(call, 2)
    ]


def _histograms(call: Call, position: int) -> list[tuple[Labels, _Histogram]]:
    """The buckets of a vector by histogram; those without a bound that can be read are left out with a warning."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for element in vector(call, position):
        text = next((value for label, value in element.labels if label == BOUND), "")
        bound = parse_float(text)
        if bound is None:
            bad_bucket_label(call, position, name_of(element.labels), text)
            continue
        rest = tuple(pair for pair in element.labels if pair[0] != BOUND)
        groups.setdefault(rest, []).append((bound, element.value))
    return [(labels, _Histogram(buckets)) for labels, buckets in groups.items()]


HISTOGRAMS: Mapping[str, Function] = {
    "histogram_quantile": Function("histogram_quantile", _quantile),
    "histogram_fraction": Function("histogram_fraction", _fraction),
}
