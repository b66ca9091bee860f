"""What the API asks of the watcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agent.model import Action, Alert, Incident


class Backend(Protocol):
    """Answers from memory or from the journal; no call may block the event loop.

    Refusals are :class:`agent.errors.AgentError`: NotFoundError (404), ConflictError (409), UsageError (400),
    any other (503).
    """

    def status(self) -> dict[str, object]:
        """``{version, started_at, frozen, servers: […], notifiers: […], rules: {enabled, problem},
        journal: {healthy, error}}``.
        """
        ...

    def alerts(self) -> tuple[Alert, ...]:
        """All that is pending or firing."""
        ...

    def rules(self) -> Sequence[Mapping[str, Any]]:
        """Every rule with its server, as of its last evaluation."""
        ...

    def incidents(self, limit: int) -> tuple[Incident, ...]:
        """Newest first."""
        ...

    def incident(self, incident_id: str) -> Incident | None: ...

    async def approve(self, action_id: str, actor: str) -> Action:
        """Raises NotFoundError for an unknown id, ConflictError where nothing waits for approval."""
        ...

    async def deny(self, action_id: str, actor: str) -> Action:
        """As :meth:`approve`."""
        ...

    async def freeze(self, actor: str) -> None:
        """Stop all acting until :meth:`thaw`."""
        ...

    async def thaw(self, actor: str) -> None: ...

    async def reset_breaker(self, server: str | None, actor: str) -> tuple[str, ...]:
        """Close the breaker of one server, or of all; returns the servers whose breaker was open."""
        ...
