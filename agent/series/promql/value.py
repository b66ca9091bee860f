"""The values that flow through a query, and the contract between the evaluator and its functions.

An expression gives a scalar (float), a string, an instant vector (:class:`Element` list) or, below a function, a range
vector (:class:`Range`). Functions compute; the evaluator cuts windows, drops names, and refuses duplicate label sets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.series.data import Labels


class Element(NamedTuple):
    """One element of an instant vector. ``drop_name``: its name goes at the query's end (delayed name removal)."""

    labels: Labels
    value: float
    drop_name: bool = False


class Span:
    """One series within a window: samples ``lo`` to ``hi`` (exclusive) of ``times`` (ms) and ``values``.

    No staleness marker is among them. ``drops``: the times of counter resets if they are known, else None.
    """

    __slots__ = ("drop_name", "drops", "hi", "labels", "lo", "times", "values")

    def __init__(
        self,
        labels: Labels,
        times: Sequence[int],
        values: Sequence[float],
        lo: int,
        hi: int,
        drops: Sequence[int] | None = None,
        drop_name: bool = False,
    ) -> None:
        self.labels = labels
        self.times = times
        self.values = values
        self.lo = lo
        self.hi = hi
        self.drops = drops
        self.drop_name = drop_name

    def __len__(self) -> int:
        return self.hi - self.lo

    def points(self) -> Sequence[float]:
        """The values of the window, oldest first."""
        return self.values[self.lo : self.hi]

    def resets(self) -> list[int]:
        """Indices (into ``times``) in the window at which the value fell below the one before it in the window."""
        if self.drops is None:
            values = self.values
            return [i for i in range(self.lo + 1, self.hi) if values[i] < values[i - 1]]
        if not self.drops or self.hi - self.lo < 2:
            return []
        first, last = self.times[self.lo], self.times[self.hi - 1]
        inside = [time for time in self.drops[bisect_left(self.drops, first + 1) :] if time <= last]
        return [bisect_left(self.times, time, self.lo, self.hi) for time in inside]


class Range(NamedTuple):
    """A range vector. The window is ``(start_ms, end_ms]``: open on the left, as Prometheus 3 has it."""

    spans: Sequence[Span]
    start_ms: int
    end_ms: int


Vector = list[Element]
Value = float | str | Vector | Range


class Notes:
    """Warnings and infos that a query gives beside its result, each once."""

    def __init__(self) -> None:
        self.warnings: dict[str, None] = {}
        self.infos: dict[str, None] = {}

    def warn(self, text: str) -> None:
        """The result may be wrong."""
        self.warnings[text] = None

    def info(self, text: str) -> None:
        """The query may not mean what its author thinks."""
        self.infos[text] = None


class Call(NamedTuple):
    """One call of a function at one moment, with what a function may need to know of its place in the query.

    ``arguments``: evaluated, in order, parentheses taken off: float, str, list of :class:`Element`, or :class:`Range`.
    An optional argument that was not given is not there; a function that falls back to ``vector(time())`` (``hour``)
    does so itself. Vectors and windows belong to the evaluator and may be shared: never change them, build new lists.

    ``texts``: the source of each argument. ``where``: the position of each as Prometheus ends its annotations with,
    ``"(1:25)"``; a note is the whole text, ``"PromQL warning: ... (1:25)"`` or ``"PromQL info: ... (1:25)"``.

    ``matchers``: name, operator, value of the first argument's where it is a selector or a range of one (``absent``
    makes labels of them; the metric's name is the matcher of ``__name__``), else empty.

    ``times``: only for ``timestamp`` over a plain selector: the sample's own time (ms) of each element; else None, and
    ``timestamp`` gives ``at_ms``.

    ``delayed``: names go at the query's end (an option, off in Prometheus): then a function gives ``drop_name`` of its
    input on (``label_replace`` and ``label_join`` clear it when they write ``__name__``). The evaluator sets it, or
    takes the name off, on what comes back where ``Function.drops_name``; so functions leave names where they are.
    Duplicate label sets in what comes back are the evaluator's to refuse as well.
    """

    arguments: tuple[Value, ...]
    at_ms: int
    notes: Notes
    texts: tuple[str, ...] = ()
    matchers: tuple[tuple[str, str, str], ...] = ()
    where: tuple[str, ...] = ()
    times: Sequence[int] | None = None
    delayed: bool = False


class Function(NamedTuple):
    """A PromQL function. ``drops_name``: the result is no longer the metric that went in.

    ``evaluate`` returns a float, a string or a vector whose labels still carry the name; raises
    :class:`agent.series.promql.errors.QueryError` on arguments that Prometheus refuses as well.
    A function over a range gives one element a span at most, spans with nothing to say left out; in order.
    A name that is not in the mapping of functions is refused when the query is compiled.
    """

    name: str
    evaluate: Callable[[Call], float | str | Vector]
    drops_name: bool = True
