"""Whether a result is the expected one, to the letter of Prometheus' own test runner (promql/promqltest/test.go).

In: a case and what its query gave. Out: None, or the difference in words. Values are equal within a relative 1e-6, NaN
equals NaN but not a staleness marker; labels are equal as a whole; a series too many or too few is a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.series.data import NAME, Labels, is_stale
from tests.promql.cases import Eval
from tests.promql.notation import Mark, Point

TOLERANCE = 1e-6
SMALLEST_NORMAL = 2.2250738585072014e-308
LARGEST = 1.7976931348623157e308

Matrix = Mapping[Labels, Mapping[int, float]]


def equal(left: float, right: float) -> bool:
    """Whether two samples are equal within the tolerance."""
    if is_stale(left) or is_stale(right):
        return is_stale(left) and is_stale(right)
    if left == right or (left != left and right != right):
        return True
    size, distance = abs(left) + abs(right), abs(left - right)
    if left == 0 or right == 0 or size < SMALLEST_NORMAL:
        return distance < TOLERANCE * SMALLEST_NORMAL
    return distance / min(size, LARGEST) < TOLERANCE


def text_of(labels: Labels) -> str:
    """A series as the case files write it."""
    pairs = [f'{name}="{value}"' for name, value in labels if name != NAME]
    return dict(labels).get(NAME, "") + "{" + ", ".join(pairs) + "}"


def scalar_difference(case: Eval, value: float) -> str | None:
    """The difference between a scalar and what was expected."""
    if case.scalar is None:
        return f"expected {_expected(case)}, got the scalar {value}"
    return None if equal(case.scalar, value) else f"expected {case.scalar}, got {value}"


def string_difference(case: Eval, value: str) -> str | None:
    """The difference between a string and what was expected."""
    return None if case.string == value else f"expected {_expected(case)}, got the string {value!r}"


def vector_difference(case: Eval, elements: Sequence[tuple[Labels, float]]) -> str | None:
    """The difference between an instant vector and what was expected."""
    if case.scalar is not None or case.string is not None:
        return f"expected {_expected(case)}, got a vector: {_listed(elements)}"
    expected = dict(case.series)
    order = list(expected)
    for position, (labels, value) in enumerate(elements):
        if labels not in expected:
            return f"expected no {text_of(labels)}, got it with {value}"
        point = expected[labels][0] if expected[labels] else Mark.OMITTED
        if isinstance(point, Mark) or not equal(point, value):
            return f"expected {text_of(labels)} with {_point(point)}, got {value}"
        if case.expects("ordered") and order[position] != labels:
            return f"expected {text_of(order[position])} at position {position + 1}, got {text_of(labels)}"
    return _missing(expected, [labels for labels, _ in elements])


def matrix_difference(case: Eval, times: tuple[int, int, int], matrix: Matrix) -> str | None:
    """The difference between series over time and what was expected. ``times``: start, end, step (ms)."""
    if case.scalar is not None or case.string is not None:
        return f"expected {_expected(case)}, got series over time"
    if list(matrix) != sorted(matrix):
        return "expected series sorted by labels, got them unsorted"
    expected = dict(case.series)
    for labels, samples in matrix.items():
        if labels not in expected:
            return f"expected no {text_of(labels)}, got it with {dict(samples)}"
        difference = _samples_difference(expected[labels], times, samples)
        if difference:
            return f"{text_of(labels)}: {difference}"
    return _missing(expected, list(matrix))


def _samples_difference(points: Sequence[Point], times: tuple[int, int, int], got: Mapping[int, float]) -> str | None:
    start, end, step = times
    if points and start + (len(points) - 1) * step > end:
        return f"expected {len(points)} points, more than the query's range can give"
    wanted = {start + index * step: point for index, point in enumerate(points) if not isinstance(point, Mark)}
    if list(wanted) != list(got):
        return f"expected samples at {_seconds(wanted)}, got them at {_seconds(got)} (values {list(got.values())})"
    for time, value in wanted.items():
        if not equal(value, got[time]):
            return f"expected {value} at {time / 1000} s, got {got[time]} (all: {list(got.values())})"
    return None


def _missing(expected: Mapping[Labels, Sequence[Point]], got: Sequence[Labels]) -> str | None:
    if len(set(got)) != len(got):
        return "expected each series once, got one twice"
    for labels, points in expected.items():
        if labels not in got:
            return f"expected {text_of(labels)} with {' '.join(map(_point, points))}, got {len(got)} series without it"
    return None


def _seconds(times: Mapping[int, object]) -> str:
    return ", ".join(f"{time / 1000:g}" for time in times) + " s" if times else "no time"


def _expected(case: Eval) -> str:
    if case.scalar is not None:
        return f"the scalar {case.scalar}"
    if case.string is not None:
        return f"the string {case.string!r}"
    return f"{len(case.series)} series"


def _listed(elements: Sequence[tuple[Labels, float]]) -> str:
    return ", ".join(f"{text_of(labels)} {value}" for labels, value in elements) or "empty"


def _point(point: Point) -> str:
    return point.value if isinstance(point, Mark) else f"{point}"
