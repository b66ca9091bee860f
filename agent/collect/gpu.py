"""The server's own cards as samples and readings, in rounds: what is cheap at each, what is costly seldom.

In: the launcher's ``probe gpu``, or the driver asked from here for a server of this host that nothing wraps. Out:
:class:`GpuSet`: samples under the published names, readings for the diagnosis, whether a card was busy, Xids that are
new, and for each figure that is missing the reason. A figure that is unknown is never a sample, and of a card that is
lost there is ``vllm_agent_gpu_up`` 0 and nothing else that its driver tells.

What comes over the socket is checked: an unknown name, a label that is no short word and a value that is no number are
left out. Nothing here blocks the loop: the driver is asked by a process of its own with a limit of 1.5 s
(``agent/launch/driverlink.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from agent.collect.gpudocument import CardAccount, GpuDocument, Problem, read_document
from agent.errors import LauncherError
from agent.model import GpuReading, NotMeasured, Sample

COSTLY_SECONDS = 30.0
COSTLY_STALE_SECONDS = 90.0
STALE_SECONDS = 15.0
"""A driver that takes longer than one round to answer brings figures of the round before; older ones are gone."""
PREFIX = "vllm_agent_"
UTILIZATION = "gpu_utilization_ratio"


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid of a card. ``at`` is Unix time; all four together are its identity."""

    gpu: int
    uuid: str
    number: int
    at: float


class GpuSet(msgspec.Struct, frozen=True, kw_only=True):
    """One round.

    ``readings`` None: nobody told; () is "no card". ``busy``: a kernel ran within the driver's last sampling period
    (1/6 to 1 s, nvml.h); None where that was not asked or not told. ``xids`` are those that earlier rounds did not
    bring; the first round of a watcher brings the last 64 of before, so an Xid may come twice, never not at all.
    """

    samples: tuple[Sample, ...] = ()
    readings: tuple[GpuReading, ...] | None = None
    busy: bool | None = None
    not_measured: tuple[NotMeasured, ...] = ()
    xids: tuple[Xid, ...] = ()
    backend: str | None = None
    driver: str | None = None
    age_seconds: float | None = None


class GpuSource(Protocol):
    """Where the account comes from. ``pids`` are the server's processes, for a source that does not know them itself.

    Raises LauncherError where nobody answers.
    """

    async def facts(self, *, costly: bool, pids: Sequence[int]) -> Mapping[str, object]: ...

    def close(self) -> None:
        """Let go of whatever was started for asking."""
        ...


class GpuRounds:
    """The rounds of one server (label ``server``)."""

    def __init__(self, server: str, source: GpuSource) -> None:
        self._server = server
        self._source = source
        self._costly_at: float | None = None
        self._costly: dict[tuple[int, str], CardAccount] = {}
        self._seen: frozenset[tuple[int, str, int, float]] = frozenset()

    async def read(self, now: float, *, asked: bool = False, pids: Sequence[int] = ()) -> GpuSet:
        """One round at monotonic ``now``; ``asked`` wants the costly figures (utilisation) fresh. Never raises."""
        costly = asked or self._costly_at is None or now - self._costly_at >= COSTLY_SECONDS
        try:
            document = read_document(await self._source.facts(costly=costly, pids=pids))
        except LauncherError as error:
            return GpuSet(not_measured=(NotMeasured(check="gpu", reason=error.message),))
        if isinstance(document, str):
            return GpuSet(not_measured=(NotMeasured(check="gpu", reason=document),))
        return self._round(document, now)

    def close(self) -> None:
        """Let go of the source."""
        self._source.close()

    def _round(self, document: GpuDocument, now: float) -> GpuSet:
        fresh = document.measured and document.age_seconds <= STALE_SECONDS
        cards = document.cards if fresh else ()
        if fresh and document.costly:
            self._costly_at = now - document.age_seconds
            self._costly = {(card.index, card.uuid): card.costly() for card in cards if card.up}
        missing = [NotMeasured(check="gpu", reason=problem) for problem in _problems(document)]
        samples: list[Sample] = []
        for card in cards:
            whole = self._with_costly(card, now)
            samples += _samples(self._server, whole)
            missing += _missing(whole)
        samples += _xid_samples(self._server, document)
        return GpuSet(
            samples=tuple(samples),
            readings=tuple(card.reading for card in cards if card.reading is not None) if fresh else None,
            busy=_busy(document) if fresh and document.costly else None,
            not_measured=tuple(missing),
            xids=self._new_xids(document),
            backend=document.backend,
            driver=document.driver,
            age_seconds=document.age_seconds if document.measured else None,
        )

    def _with_costly(self, card: CardAccount, now: float) -> CardAccount:
        """The card with its last costly figures, as long as they count; a card that is down has none."""
        if not card.up:
            self._costly.pop((card.index, card.uuid), None)
            return card
        kept = self._costly.get((card.index, card.uuid))
        if kept is None or self._costly_at is None or now - self._costly_at > COSTLY_STALE_SECONDS:
            return card
        return card.joined(kept)

    def _new_xids(self, document: GpuDocument) -> tuple[Xid, ...]:
        everyone = {(one.gpu, one.uuid, one.xid, one.at): one for one in document.xids.recent}
        new = [one for identity, one in everyone.items() if identity not in self._seen]
        self._seen = frozenset(everyone)
        return tuple(Xid(gpu=one.gpu, uuid=one.uuid, number=one.xid, at=one.at) for one in new)


def _problems(document: GpuDocument) -> list[str]:
    """What concerns all cards: the driver, the choice of cards, and the events."""
    found = []
    if document.trouble is not None:
        found.append(_told(document, document.trouble))
    elif not document.measured:
        found.append("nobody told of a GPU")
    found += [f"{document.note}"] if document.note else []
    found += [f"Xid events: {document.xid_reason}"] if document.xid_reason else []
    return found


def _told(document: GpuDocument, trouble: Problem) -> str:
    if document.measured:
        return f"{trouble.reason}; the figures are {document.age_seconds:.0f} s old"
    return trouble.reason


def _samples(server: str, card: CardAccount) -> list[Sample]:
    labels = {"server": server, "gpu": str(card.index), "uuid": card.uuid}
    found = [Sample(f"{PREFIX}gpu_up", labels, float(card.up))]
    if card.up:
        found += [Sample(PREFIX + row.name, {**labels, **row.labels}, row.value) for row in card.rows]
    return found


def _missing(card: CardAccount) -> list[NotMeasured]:
    if not card.up:
        return [NotMeasured(check=f"gpu {card.index}", reason=card.reason or "the driver does not answer for it")]
    return [
        NotMeasured(check=f"gpu {card.index} {field.replace('_', ' ')}", reason=reason)
        for field, reason in card.failed.items()
    ]


def _xid_samples(server: str, document: GpuDocument) -> list[Sample]:
    found = []
    for one in document.xids.counts:
        labels = {"server": server, "gpu": str(one.gpu), "uuid": one.uuid, "name": str(one.xid)}
        found.append(Sample(f"{PREFIX}gpu_xid_errors_total", labels, float(one.count)))
        found.append(Sample(f"{PREFIX}gpu_xid_last_timestamp_seconds", labels, one.last))
    return found


def _busy(document: GpuDocument) -> bool | None:
    values = [row.value for card in document.cards if card.up for row in card.rows if row.name == UTILIZATION]
    if any(value > 0 for value in values):
        return True
    complete = len(values) == len(document.cards) and bool(values)
    return False if complete else None
