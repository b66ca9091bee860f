"""Where and when a query is evaluated, and what several queries of one tick share.

In: a storage and a moment. Out: to the nodes of a query, the series they select and what another rule has found
already. An :class:`Evaluation` is one moment of one query and is thrown away. A :class:`Session` lives as long as its
storage: it remembers which series a selector chose as long as the storage says that its set of series is the same
(``generation``), and, within one tick, what each expression gave, because rules of one pack ask for the same rates
over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.series.data import Matcher, Series, Storage
from agent.series.promql.errors import QueryError
from agent.series.promql.value import Notes, Value, Vector

LOOKBACK_MS = 300_000
INTERVAL_MS = 60_000
SAME_LABELS = "vector cannot contain metrics with the same labelset"


class Found(NamedTuple):
    """What an expression gave, with its notes, so that every rule that asks gets them."""

    value: Value
    notes: Notes


class Session:
    """What the rules of one storage share. Tell it when samples came within a tick (:meth:`changed`)."""

    def __init__(self, storage: Storage, *, lookback_ms: int = LOOKBACK_MS, interval_ms: int = INTERVAL_MS) -> None:
        self.storage = storage
        self.lookback_ms = lookback_ms
        self.interval_ms = interval_ms
        self._at_ms: int | None = None
        self._generation: int | None = None
        self.selected: dict[str, Sequence[Series]] = {}
        self.found: dict[str, Found] = {}

    def begin(self, at_ms: int) -> None:
        """A query is about to be evaluated at that moment; forget what was found at another."""
        generation: int | None = getattr(self.storage, "generation", None)
        if at_ms != self._at_ms:
            self._at_ms = at_ms
            self.found.clear()
            if generation is None:
                self.selected.clear()
        if generation != self._generation:
            self._generation = generation
            self.selected.clear()
            self.found.clear()

    def changed(self) -> None:
        """Samples came within the tick (a recording rule wrote): what was found before may no longer be so."""
        self.found.clear()
        if self._generation is None:
            self.selected.clear()


class Evaluation:
    """One moment of one query. ``owners`` is there in range evaluation alone: which series gave which label set."""

    __slots__ = ("at_ms", "end_ms", "found", "interval_ms", "lookback_ms", "notes", "owners", "selected", "start_ms",
                 "storage")  # fmt: skip

    def __init__(self, session: Session, at_ms: int, start_ms: int, end_ms: int, notes: Notes) -> None:
        self.storage = session.storage
        self.lookback_ms = session.lookback_ms
        self.interval_ms = session.interval_ms
        self.selected = session.selected
        self.found: dict[str, Found] | None = session.found
        self.at_ms = at_ms
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.notes = notes
        self.owners: dict[tuple[int, object], object] | None = None

    def stepping(self) -> Evaluation:
        """The same query, to be moved from step to step (a range or a subquery): nothing found is shared."""
        other = Evaluation.__new__(Evaluation)
        for name in Evaluation.__slots__:
            setattr(other, name, getattr(self, name))
        other.found = None
        other.owners = {}
        return other

    def select(self, key: str, matchers: Sequence[Matcher]) -> Sequence[Series]:
        """The series of a selector; ``key`` is its canonical text."""
        series = self.selected.get(key)
        if series is None:
            series = self.selected[key] = self.storage.select(matchers)
        return series

    def shared(self, key: str, compute: Callable[[Evaluation], Value]) -> Value:
        """What an expression gives, found once a tick."""
        found = self.found
        if found is None:
            return compute(self)
        known = found.get(key)
        if known is None:
            outer, self.notes = self.notes, Notes()
            try:
                known = found[key] = Found(compute(self), self.notes)
            finally:
                self.notes = outer
        if known.notes.warnings or known.notes.infos:
            self.notes.warnings.update(known.notes.warnings)
            self.notes.infos.update(known.notes.infos)
        return known.value

    def own(self, node: int, vector: Vector, sources: Sequence[object]) -> None:
        """Refuse two series that become one label set at different steps of a range."""
        if self.owners is not None:
            for element, source in zip(vector, sources, strict=True):
                if self.owners.setdefault((node, element.labels), source) != source:
                    raise QueryError(SAME_LABELS)


def refuse_duplicates(vector: Vector) -> None:
    """Raise QueryError where two elements have the same labels."""
    if len(vector) > 1 and len({element.labels for element in vector}) != len(vector):
        raise QueryError(SAME_LABELS)
