"""What a series is: its labels, its samples in time, and how one is chosen.

In: samples in time order. Out: the two parallel sequences that PromQL reads, with the moments at which a counter fell
noted as they come, so that a rate over a long window reads its two ends and not every sample. Times are milliseconds
since the epoch, values are floats; a series that vanished ends in Prometheus' staleness marker, a NaN with a bit
pattern of its own (prometheus/model/value/value.go).
"""

from __future__ import annotations

import enum
import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import msgspec
import re2

NAME = "__name__"
STALE_BITS = 0x7FF0000000000002
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]

Labels = tuple[tuple[str, str], ...]
"""Sorted by name; an empty value is the same as no label, so none is held. The metric's name is ``__name__``."""


def labels_of(pairs: dict[str, str]) -> Labels:
    """The canonical form of a label set."""
    return tuple(sorted((name, value) for name, value in pairs.items() if value != ""))


def is_stale(value: float) -> bool:
    """Whether a sample is the staleness marker (an ordinary NaN is not)."""
    return value != value and struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_BITS


class Match(str, enum.Enum):
    """The four label matchers of PromQL."""

    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


class Matcher(msgspec.Struct, frozen=True):
    """One label matcher; a label that is absent reads as the empty string. Regular expressions are RE2, anchored."""

    name: str
    match: Match
    value: str

    def test(self) -> re2.Pattern | None:
        """The compiled expression of a regular-expression matcher; raises re2.error."""
        if self.match in (Match.EQUAL, Match.NOT_EQUAL):
            return None
        return re2.compile(f"^(?s:{self.value})$")


class Series:
    """One series. ``times`` (ms, rising) and ``values`` run in parallel; ``drops`` holds the times of counter resets.

    A reset is a value below the last one that was not a staleness marker. ``stale`` counts the markers held.
    Both sequences are arrays of eight bytes a sample: a watcher holds a million samples, and a list of floats takes
    two to four times as much.
    """

    __slots__ = ("drops", "labels", "stale", "times", "values")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.times = array("q")
        self.values = array("d")
        self.drops: list[int] = []
        self.stale = 0

    def append(self, time_ms: int, value: float) -> bool:
        """Add a sample; one that is not younger than the last is refused (False)."""
        if self.times and time_ms <= self.times[-1]:
            return False
        if value != value and is_stale(value):
            self.stale += 1
        elif self.values and self._falls(value):
            self.drops.append(time_ms)
        self.times.append(time_ms)
        self.values.append(value)
        return True

    def _falls(self, value: float) -> bool:
        last = self.values[-1]
        if last == last or not self.stale or not is_stale(last):
            return value < last
        before = next((old for old in reversed(self.values) if not is_stale(old)), None)
        return before is not None and value < before

    def take(self, other: Series) -> None:
        """Hold the samples of ``other``, which is not used again, in place of the own ones."""
        self.times, self.values, self.drops, self.stale = other.times, other.values, other.drops, other.stale

    def trim(self, before_ms: int) -> None:
        """Forget all samples older than ``before_ms``."""
        keep = bisect_left(self.times, before_ms)
        if keep == 0:
            return
        if self.stale:
            self.stale -= sum(1 for value in self.values[:keep] if value != value and is_stale(value))
        del self.times[:keep]
        del self.values[:keep]
        del self.drops[: bisect_left(self.drops, before_ms)]

    def cut(self, from_ms: int) -> None:
        """Forget the samples of ``from_ms`` and later: the wall clock was set back before them."""
        keep = bisect_left(self.times, from_ms)
        if keep == len(self.times):
            return
        if self.stale:
            self.stale -= sum(1 for value in self.values[keep:] if value != value and is_stale(value))
        del self.times[keep:]
        del self.values[keep:]
        del self.drops[bisect_left(self.drops, from_ms) :]


class Storage(Protocol):
    """What PromQL reads from."""

    def select(self, matchers: Sequence[Matcher]) -> Sequence[Series]:
        """All series that match, whole; the caller cuts the window."""
        ...
