"""What the journal hands out beside incidents and actions. Times RFC 3339 UTC."""

from __future__ import annotations

import msgspec

from agent.model import Incident

EXPORT_VERSION = 1


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened; ``seq`` only grows. ``data`` is a JSON object."""

    seq: int
    at: str
    kind: str
    server: str | None
    data: dict[str, object]


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message that a notifier owes. ``ref`` is what the receiver called the topic's first message."""

    id: int
    notifier: str
    key: str
    topic: str
    payload: bytes
    created_at: str
    attempts: int
    next_at: str
    ref: str | None
    error: str | None


class ExportLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal's export: an incident with its actions, or an event."""

    schema_version: int
    incident: Incident | None = None
    event: Event | None = None
