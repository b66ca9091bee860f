"""What goes wrong in a query, in the project's tree of errors."""

from __future__ import annotations

from agent.errors import AgentError


class QueryError(AgentError):
    """A query that cannot be evaluated on these data, as Prometheus would refuse it."""


class UnsupportedError(AgentError):
    """A construct that this evaluator does not have; found when the query is compiled, never when it runs."""
