"""An alert as people and receivers get it: the state of one label set of one alerting rule."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class AlertState(str, enum.Enum):
    """``pending``: the condition holds, its ``for`` has not passed. ``resolved`` exists only in what is told."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Times RFC 3339 UTC. ``labels`` hold ``alertname`` and ``severity``; ``server`` is the watched server's name.

    ``value`` is the expression's value at the last evaluation that held. ``runbook`` is a URL or None.
    """

    server: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    state: AlertState
    active_at: str
    starts_at: str | None = None
    ends_at: str | None = None
    value: float
    runbook: str | None = None

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.labels.get("alertname", "")

    @property
    def fingerprint(self) -> str:
        """The same for the same label set of the same server."""
        return "\0".join((self.server, *(f"{name}\1{value}" for name, value in sorted(self.labels.items()))))
