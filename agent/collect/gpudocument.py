"""The answer of ``probe gpu`` as typed values; what does not fit is left out or refused in words.

In: a JSON object of the launcher, or of the driver asked from here. Out: :class:`GpuDocument`. Names and labels are
those of ``agent/metrics.yaml`` and no others, so that nothing that came over a socket becomes a series of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agent.model import GpuReading

LABEL_CHARACTERS = 64
REASON_CHARACTERS = 500
LARGEST = 1e19
ROWS = 200
PLAIN: frozenset[str] = frozenset()
NAMES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            "gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_memory_total_bytes",
            "gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_memory_reserved_bytes", "gpu_power_watts",
            "gpu_power_limit_watts", "gpu_temperature_celsius", "gpu_memory_temperature_celsius",
            "gpu_remap_pending", "gpu_remap_failed", "gpu_pcie_replays_total", "gpu_energy_joules_total",
        ),
        PLAIN,
    ),
    **dict.fromkeys(
        ("gpu_process_memory_bytes", "gpu_processes", "gpu_ecc_errors_total", "gpu_remapped_rows"),
        frozenset({"class"}),
    ),
    "gpu_clock_hertz": frozenset({"name"}),
    "gpu_clock_event": frozenset({"reason"}),
}  # fmt: skip
NAMES_COSTLY = frozenset({
    "gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_power_watts", "gpu_energy_joules_total",
    "gpu_remapped_rows", "gpu_remap_pending", "gpu_remap_failed",
})  # fmt: skip
FIELDS_COSTLY = frozenset({"utilization", "power", "energy", "remapped_rows"})


class Row(msgspec.Struct, frozen=True):
    """One figure of a card, without the labels that all of the card have."""

    name: str
    labels: Mapping[str, str]
    value: float


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card, or one MIG instance: ``uuid`` is then the instance's. ``failed``: why a field is missing."""

    index: int
    uuid: str
    up: bool
    reason: str | None
    rows: tuple[Row, ...]
    failed: Mapping[str, str]
    reading: GpuReading | None

    def costly(self) -> CardAccount:
        """Its costly figures alone."""
        rows = tuple(row for row in self.rows if row.name in NAMES_COSTLY)
        failed = {name: reason for name, reason in self.failed.items() if name in FIELDS_COSTLY}
        return msgspec.structs.replace(self, rows=rows, failed=failed)

    def joined(self, kept: CardAccount) -> CardAccount:
        """This account, and what ``kept`` has of fields that this one was not asked for."""
        present = {row.name for row in self.rows}
        rows = (*self.rows, *(row for row in kept.rows if row.name not in present))
        return msgspec.structs.replace(self, rows=rows, failed={**kept.failed, **self.failed})


class Problem(msgspec.Struct, frozen=True):
    """Why there is no reading, or none of now."""

    kind: str
    reason: str


class XidCount(msgspec.Struct, frozen=True):
    """Total of one number on one card; ``last`` is Unix time."""

    gpu: int
    uuid: str
    xid: int
    count: int
    last: float


class XidEvent(msgspec.Struct, frozen=True):
    """One event; ``at`` is Unix time."""

    gpu: int
    uuid: str
    xid: int
    at: float


class XidAccount(msgspec.Struct, frozen=True):
    """Totals, and the last events."""

    counts: tuple[XidCount, ...] = ()
    recent: tuple[XidEvent, ...] = ()


class GpuDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``measured`` false: there is no reading at all, ``trouble`` says why. ``costly``: those fields were asked too."""

    measured: bool
    costly: bool = False
    backend: str | None = None
    driver: str | None = None
    age_seconds: float = 0.0
    trouble: Problem | None = None
    note: str | None = None
    xid_reason: str | None = None
    cards: tuple[CardAccount, ...] = ()
    xids: XidAccount = XidAccount()


class _Wire(msgspec.Struct, kw_only=True):
    measured: bool
    costly: bool
    cards: list[dict[str, Any]]
    xids: XidAccount
    backend: str | None = None
    driver: str | None = None
    age_seconds: float | None = None
    trouble: Problem | None = None
    note: str | None = None
    xid_reason: str | None = None


def read_document(document: Mapping[str, object]) -> GpuDocument | str:
    """The answer, or in words why it is none: a launcher of an older release does not tell of cards."""
    if "measured" not in document:
        return "the launcher is of a release that does not measure cards; update it together with the watcher"
    try:
        wire = msgspec.convert(document, _Wire)
        cards = tuple(_card(one) for one in wire.cards)
    except msgspec.ValidationError as error:
        return f"the answer about the cards could not be read: {error}"
    return GpuDocument(
        measured=wire.measured, costly=wire.costly, backend=wire.backend, driver=wire.driver,
        age_seconds=max(0.0, wire.age_seconds or 0.0), trouble=wire.trouble, note=wire.note,
        xid_reason=wire.xid_reason, cards=cards, xids=wire.xids,
    )  # fmt: skip


class _Card(msgspec.Struct, kw_only=True):
    index: int
    uuid: str
    up: bool
    samples: list[Any]
    failed: dict[str, str]
    reason: str | None = None
    reading: GpuReading | None = None


def _card(one: Mapping[str, Any]) -> CardAccount:
    card = msgspec.convert(one, _Card)
    rows = (_row(entry) for entry in card.samples[:ROWS])
    failed = {name[:LABEL_CHARACTERS]: reason[:REASON_CHARACTERS] for name, reason in card.failed.items()}
    return CardAccount(
        index=card.index, uuid=card.uuid[:LABEL_CHARACTERS], up=card.up, reason=card.reason,
        rows=tuple(row for row in rows if row is not None), failed=failed, reading=card.reading,
    )  # fmt: skip


def _row(entry: object) -> Row | None:
    if not isinstance(entry, Sequence) or len(entry) != 3:
        return None
    name, labels, value = entry
    if not isinstance(name, str) or not isinstance(labels, dict) or frozenset(labels) != NAMES.get(name):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    short = all(isinstance(text, str) and 0 < len(text) <= LABEL_CHARACTERS for text in labels.values())
    return Row(name, labels, float(value)) if short and 0 <= value < LARGEST else None
