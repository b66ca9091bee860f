"""PromQL to the letter of Prometheus 3, on promql-parser's tree."""

from agent.series.promql.errors import QueryError, UnsupportedError
from agent.series.promql.evaluation import Session
from agent.series.promql.query import Query, Selected, compile_query
from agent.series.promql.value import Element, Notes, Range, Span, Value, Vector

__all__ = [
    "Element",
    "Notes",
    "Query",
    "QueryError",
    "Range",
    "Selected",
    "Session",
    "Span",
    "UnsupportedError",
    "Value",
    "Vector",
    "compile_query",
]
