"""The ring store: series in memory, written as Prometheus writes a scrape.

In: the answers of one target's ``/metrics`` (:meth:`Store.scraped`, :meth:`Store.failed`, :meth:`Store.gone`), the
what recording rules and the agent's own collectors gave (:meth:`Store.record`). Out: :meth:`Store.select`,
from which PromQL reads. A store belongs to one target. It behaves as Prometheus 3 with ``honor_labels: false`` and
``honor_timestamps: true`` (scrape/scrape.go, scrape/target.go, rules/group.go):

* the target's labels (``job``, ``instance``) win, an exposed label of that name becomes ``exported_…``;
* ``up``, ``scrape_duration_seconds``, ``scrape_samples_scraped`` and ``scrape_samples_post_metric_relabeling`` are
  written at every scrape, also at one that failed;
* a series that the last answer had and this one lacks, and every series of a failed scrape, ends in a staleness
  marker; series with a timestamp of their own are not tracked;
* of two samples of one series in one answer the first counts; a sample that is not younger than the last is refused.

It differs in three things, on purpose. A broken line costs that line and not the scrape. Only what the
:class:`~agent.series.selection.Selection` asks for is kept, and no longer. And a wall clock that is set back drops the
samples that lie in the future then; Prometheus would refuse all new ones until the clock has caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.series.data import NAME, STALE, Labels, Match, Matcher, Series
from agent.series.exposition import ExpositionError, Reader, name_of
from agent.series.selection import LOOKBACK_MS, Selection, tester
from agent.series.stamping import report_labels, stamped

MAX_SERIES = 10_000
"""Series of one target that are kept; a server that makes up labels must not eat the watcher's memory."""
MAX_AHEAD_MS = 600_000
"""Prometheus refuses explicit timestamps further ahead than ten minutes (scrape.go, maxAheadTime)."""
TRIM_EVERY_MS = 30_000
JITTER_MS = 1_000
MAX_CACHED_SELECTIONS = 1_024
MAX_UNWANTED = 20_000
SCRAPE = "scrape"


class Held:
    """A series with how long its samples are kept, and the last scrape that had it."""

    __slots__ = ("kept_ms", "round", "series")

    def __init__(self, series: Series, kept_ms: int) -> None:
        self.series = series
        self.kept_ms = kept_ms
        self.round = 0


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one scrape.

    ``at_ms``: the time that its samples bear; ``scraped``: samples in the answer; ``kept``: those asked for;
    ``refused``: duplicates and samples out of order; ``vllm``: whether there was any ``vllm:*`` series; ``trouble``:
    what a person should know, in one sentence.
    """

    at_ms: int
    up: bool
    scraped: int = 0
    kept: int = 0
    refused: int = 0
    vllm: bool = False
    trouble: str | None = None


class Store:
    """The series of one target. ``target`` are its labels; without them nothing is stamped and no ``up`` written.

    ``generation`` changes whenever a series appears or disappears, so that a selection may be kept until then.
    """

    def __init__(
        self, selection: Selection, *, target: Mapping[str, str] | None = None, max_series: int = MAX_SERIES
    ) -> None:
        self.generation = 0
        self.target = dict(target or {})
        self._report = report_labels(self.target)
        self._selection = selection
        self._max_series = max_series
        self._held: dict[Labels, Held] = {}
        self._by_name: dict[str, dict[Labels, Series]] = {}
        self._reader: Reader[Held] = Reader(lambda exposed: self._hold(stamped(exposed, self.target)))
        self._unwanted: set[Labels] = set()
        self._refused_series = 0
        self._round = 0
        self._active: list[Held] = []
        self._recorded: dict[str, dict[Labels, Held]] = {}
        self._newest: dict[str, int] = {}
        self._trimmed_ms = 0
        self._selections: dict[tuple[Matcher, ...], tuple[int, Sequence[Series]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Series]:
        return (held.series for held in self._held.values())

    # -- what is read -------------------------------------------------------------------------------------

    def select(self, matchers: Sequence[Matcher]) -> Sequence[Series]:
        """All series that match, whole and not to be changed; raises re2.error. Kept until the generation changes."""
        key = tuple(matchers)
        cached = self._selections.get(key)
        if cached is not None and cached[0] == self.generation:
            return cached[1]
        if len(self._selections) >= MAX_CACHED_SELECTIONS:
            self._selections.clear()
        meets = tester(key)
        found = [series for series in self._candidates(key) if meets(series.labels)]
        self._selections[key] = (self.generation, found)
        return found

    def _candidates(self, matchers: Iterable[Matcher]) -> Iterable[Series]:
        for one in matchers:
            if one.name == NAME and one.match is Match.EQUAL:
                return self._by_name.get(one.value, {}).values()
        return iter(self)

    # -- what a scrape brings -----------------------------------------------------------------------------

    def scraped(self, body: bytes, content_type: str, *, at_ms: int, seconds: float) -> Taken:
        """One answer of ``/metrics``. One that is no exposition is a scrape that failed."""
        moved = self._settle(SCRAPE, at_ms)
        at_ms = self._newest[SCRAPE]
        try:
            found = self._reader.read(body, content_type)
        except ExpositionError as error:
            self._end_scrape([], at_ms, seconds, scraped=None)
            return Taken(at_ms=at_ms, up=False, trouble=error.message)
        trouble = moved or self._overflow() or found.trouble()
        refused = self._end_scrape(found.samples, at_ms, seconds, scraped=found.lines)
        return Taken(
            at_ms=at_ms,
            up=True,
            scraped=found.lines,
            kept=len(found.samples) - refused,
            refused=refused,
            vllm=body.startswith(b"vllm:") or b"\nvllm:" in body,
            trouble=trouble,
        )

    def failed(self, *, at_ms: int, seconds: float) -> Taken:
        """A scrape that brought no answer: ``up`` is 0 and every series of the target ends."""
        moved = self._settle(SCRAPE, at_ms)
        at_ms = self._newest[SCRAPE]
        self._end_scrape([], at_ms, seconds, scraped=None)
        return Taken(at_ms=at_ms, up=False, trouble=moved)

    def gone(self, *, at_ms: int) -> None:
        """The target is watched no more: its series end, ``up`` with them."""
        self._settle(SCRAPE, at_ms)
        at_ms = self._newest[SCRAPE]
        self._write([], at_ms)
        for labels in self._report:
            if labels in self._held:
                self._held[labels].series.append(at_ms, STALE)

    def _end_scrape(
        self, samples: list[tuple[Held, float, int | None]], at_ms: int, seconds: float, *, scraped: int | None
    ) -> int:
        refused = self._write(samples, at_ms)
        values = (float(scraped is not None), seconds, float(scraped or 0), float(scraped or 0))
        for labels, value in zip(self._report, values, strict=False):
            self._kept(labels).series.append(at_ms, value)
        self._trim(at_ms)
        return refused

    def _write(self, samples: list[tuple[Held, float, int | None]], at_ms: int) -> int:
        """Append the samples of one scrape and end what it lacks; returns how many were refused."""
        self._round += 1
        this, refused = self._round, 0
        active: list[Held] = []
        for held, value, time_ms in samples:
            if time_ms is not None:
                ahead = time_ms > at_ms + MAX_AHEAD_MS or time_ms <= at_ms - held.kept_ms
                refused += ahead or not held.series.append(time_ms, value)
            elif held.round == this:
                refused += 1
            else:
                held.round = this
                refused += not held.series.append(at_ms, value)
                active.append(held)
        for held in self._active:
            if held.round != this:
                held.series.append(at_ms, STALE)
        self._active = active
        return refused

    # -- what rules and the agent itself bring ------------------------------------------------------------

    def record(self, source: str, samples: Iterable[tuple[Labels, float]], *, at_ms: int) -> None:
        """All that one recording rule, or one collector of the agent's own, gives at this moment.

        What ``source`` gave before and gives no more ends in a staleness marker; without samples all of it ends. An
        evaluation that failed is not recorded at all, and nothing ends by it (as in Prometheus, rules/group.go).
        """
        self._settle(source, at_ms)
        now: dict[Labels, Held] = {}
        for labels, value in samples:
            held = self._held.get(labels) or self._wanted(labels)
            if held is not None:
                held.series.append(at_ms, value)
                now[labels] = held
        for labels, held in self._recorded.pop(source, {}).items():
            if labels not in now:
                held.series.append(at_ms, STALE)
        if now:
            self._recorded[source] = now
        self._trim(at_ms)

    def append(self, labels: Labels, time_ms: int, value: float) -> bool:
        """One sample; False where its series is not asked for or it is not younger than the last."""
        held = self._held.get(labels) or self._wanted(labels)
        return held is not None and held.series.append(time_ms, value)

    def restore(self, former: Series, *, now_ms: int) -> int:
        """Take up a series of an earlier run; returns how many of its samples are kept.

        What is too old, what lies in the future, and what nobody asks for any more is left out. Nothing is marked
        stale by it: as after a restart of Prometheus, a series that has vanished meanwhile ends with the lookback.
        """
        known = former.labels in self._held or former.labels in self._report
        held = self._kept(former.labels) if known else self._hold(former.labels)
        if held is None or held.series.times:
            return 0
        former.trim(now_ms - held.kept_ms)
        former.cut(now_ms)
        held.series.take(former)
        if not former.times:
            self._remove(former.labels)
        return len(former.times)

    # -- what is kept -------------------------------------------------------------------------------------

    def adopt(self, selection: Selection) -> None:
        """Other rules: what they do not ask for is dropped, what they newly ask for begins now."""
        self._selection = selection
        for labels, held in list(self._held.items()):
            kept_ms = selection.kept_ms(labels)
            if kept_ms is None and labels not in self._report:
                self._remove(labels)
            else:
                held.kept_ms = kept_ms or LOOKBACK_MS
        self._active = [held for held in self._active if held.series.labels in self._held]
        self._forget()

    def _hold(self, labels: Labels) -> Held | None:
        """The series with these labels; None where nobody asks for it, or where there are too many."""
        held = self._held.get(labels)
        if held is not None:
            return held
        kept_ms = self._selection.kept_ms(labels)
        if kept_ms is None:
            return None
        if len(self._held) >= self._max_series:
            self._refused_series += 1
            return None
        return self._add(labels, kept_ms)

    def _wanted(self, labels: Labels) -> Held | None:
        """The same where no reader remembers what is not asked for."""
        if labels in self._unwanted:
            return None
        held = self._hold(labels)
        if held is None and len(self._unwanted) < MAX_UNWANTED:
            self._unwanted.add(labels)
        return held

    def _kept(self, labels: Labels) -> Held:
        """A series that is kept whether a rule asks for it or not."""
        held = self._held.get(labels)
        return held if held is not None else self._add(labels, self._selection.kept_ms(labels) or LOOKBACK_MS)

    def _add(self, labels: Labels, kept_ms: int) -> Held:
        held = self._held[labels] = Held(Series(labels), kept_ms)
        self._by_name.setdefault(name_of(labels), {})[labels] = held.series
        self.generation += 1
        return held

    def _remove(self, labels: Labels) -> None:
        del self._held[labels]
        name = name_of(labels)
        del self._by_name[name][labels]
        if not self._by_name[name]:
            del self._by_name[name]
        self.generation += 1

    def _forget(self) -> None:
        """What the reader remembers of series that are no longer the same; they are looked up anew."""
        self._reader.forget()
        self._unwanted.clear()
        self._refused_series = 0

    def _trim(self, at_ms: int) -> None:
        """Now and then, since cutting arrays at every scrape would move all they hold."""
        if at_ms - self._trimmed_ms < TRIM_EVERY_MS:
            return
        self._trimmed_ms = at_ms
        before = len(self._held)
        for labels, held in list(self._held.items()):
            held.series.trim(at_ms - held.kept_ms)
            if not held.series.times:
                self._remove(labels)
        if len(self._held) != before:
            self._forget()

    def _overflow(self) -> str | None:
        if not self._refused_series:
            return None
        return f"more than {self._max_series} series are asked for: {self._refused_series} are not kept"

    def _settle(self, source: str, at_ms: int) -> str | None:
        """Note the time of what comes; says so where the wall clock was set back."""
        newest = self._newest.get(source, 0)
        if at_ms > newest:
            self._newest[source] = at_ms
            return None
        if newest - at_ms <= JITTER_MS:
            self._newest[source] = newest + 1
            return None
        for held in self._held.values():
            held.series.cut(at_ms)
        self._newest = dict.fromkeys(self._newest, at_ms)
        self._trimmed_ms = min(self._trimmed_ms, at_ms)
        return f"the wall clock was set back by {(newest - at_ms) / 1000:.0f} s: the samples since then are dropped"
