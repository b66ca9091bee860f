"""What a notifier is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from agent.model import Alert, Incident

Subject = Incident | Alert
"""What people are told of."""


class Phase(NamedTuple):
    """The message that a subject deserves now.

    A ``key`` is sent once for ever; a newer message of a ``topic`` replaces older ones that were never sent. With
    ``delay_seconds`` a new message waits for a better word, for receivers that cannot edit.
    """

    topic: str
    key: str
    delay_seconds: float = 0.0


class Notifier(Protocol):
    """One receiver of single messages."""

    @property
    def name(self) -> str:
        """Label of metrics and key of the outbox; never changes."""
        ...

    @property
    def min_interval_seconds(self) -> float:
        """The pace that the receiver allows: seconds between two messages."""
        ...

    def phase(self, subject: Subject) -> Phase | None:
        """The message that this deserves now, None for none."""
        ...

    async def deliver(self, subject: Subject, ref: str | None) -> str | None:
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


class Pusher(Protocol):
    """A receiver that is told the whole present state again and again, so that nothing is owed to it."""

    @property
    def name(self) -> str:
        """Label of metrics; never changes."""
        ...

    def saw(self, subject: Subject) -> None:
        """The newest state of one alert or incident; neither blocks nor raises."""
        ...

    async def run(self) -> None:
        """Push until cancelled."""
        ...

    def status(self) -> NotifierStatus:
        """How it stands."""
        ...
