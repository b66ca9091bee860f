"""The evaluator as the test files use it: names go at a query's end, and every query has a session of its own.

In: a query, a storage, a moment or a range. Out: the value. Nothing is remembered from one query to the next, so the
storage sees every series that a query reads.
"""

from __future__ import annotations

from agent.series.data import Labels, Storage
from agent.series.promql.query import compile_query
from agent.series.promql.value import Notes, Span, Value


def instant(query: str, storage: Storage, at_ms: int, notes: Notes) -> Value:
    """The value at one moment."""
    return compile_query(query, delayed_name_removal=True).instant(storage, at_ms, notes=notes)


def ranged(query: str, storage: Storage, times: tuple[int, int, int], notes: Notes) -> dict[Labels, dict[int, float]]:
    """The series over a range, in the evaluator's order. ``times``: start, end, step (ms)."""
    value = compile_query(query, delayed_name_removal=True).range(storage, *times, notes=notes)
    return {span.labels: samples(span) for span in value.spans}


def samples(span: Span) -> dict[int, float]:
    """The values of a span by their times (ms)."""
    return dict(zip(span.times[span.lo : span.hi], span.points(), strict=True))
