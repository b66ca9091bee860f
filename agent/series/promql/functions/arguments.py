"""The arguments of a call, each as the type that its function takes.

In: the call. Out: the argument, or :class:`~agent.series.promql.errors.QueryError` where it is of another type; the
parser refuses such a query first, so this is the second lock.
"""

from __future__ import annotations

from agent.series.promql.errors import QueryError
from agent.series.promql.value import Call, Range, Value, Vector


def number(call: Call, position: int) -> float:
    """A scalar argument."""
    value = call.arguments[position]
    if isinstance(value, float):
        return value
    raise _unexpected("scalar", value)


def text(call: Call, position: int) -> str:
    """A string argument."""
    value = call.arguments[position]
    if isinstance(value, str):
        return value
    raise _unexpected("string", value)


def vector(call: Call, position: int = 0) -> Vector:
    """An instant vector argument."""
    value = call.arguments[position]
    if isinstance(value, list):
        return value
    raise _unexpected("instant vector", value)


def window(call: Call, position: int = 0) -> Range:
    """A range vector argument."""
    value = call.arguments[position]
    if isinstance(value, Range):
        return value
    raise _unexpected("range vector", value)


def _unexpected(wanted: str, value: Value) -> QueryError:
    return QueryError(f"expected a function argument of type {wanted}, got {type(value).__name__}")
