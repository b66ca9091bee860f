"""What a notifier is."""

from __future__ import annotations

from typing import Protocol

import msgspec

from agent.model import Incident


class Notifier(Protocol):
    """One receiver."""

    @property
    def name(self) -> str:
        """Label of metrics and key of the outbox; never changes."""
        ...

    @property
    def settle_seconds(self) -> float:
        """How long a new message waits for a better word, for receivers that cannot edit."""
        ...

    def phase(self, incident: Incident) -> tuple[str, str] | None:
        """``(topic, key)`` of the message this incident deserves now, None for none.

        A key is sent once for ever; a newer message of a topic replaces older ones that were never sent.
        """
        ...

    async def deliver(self, incident: Incident, ref: str | None) -> str | None:
        """Send, or edit the message that ``ref`` names; returns the new ref. Raises NotifyError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class NotifierStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a notifier stands, for ``/api/v1/status``. ``error`` is the last failure since the last success."""

    name: str
    pending: int
    parked: int
    error: str | None
