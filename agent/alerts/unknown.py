"""What cannot be judged, and why: beside a rule's state, never instead of it.

In: the parts of a rule's expression, the store, and what this version of vLLM exports. Out: for a rule, the reason why
its state says nothing (None: it was judged), and the reasons of ``or`` branches that could not be judged beside one
that was. A family that exists and had no event yet counts as zero. Nothing is kept from one moment to the next, and
nothing is looked at before somebody asks, so that the judging itself pays nothing for it.
"""

from __future__ import annotations

import enum
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from agent.alerts.duration import format_duration
from agent.alerts.expression import Join, Measured, Part, Selector
from agent.alerts.humanize import plain
from agent.alerts.rule import ALERT_SERIES, THRESHOLD, Rule
from agent.series import LOOKBACK_MS, Match, Matcher, Presence, PresenceKind, Series, Storage, is_stale
from agent.series.data import NAME

_SCRAPE = frozenset(
    ("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling")
)
_BUCKET = "_bucket"
_NEVER = "the scrape fails"


class UnknownKind(str, enum.Enum):
    """Why a rule says nothing, as one word for a label."""

    SCRAPE_FAILS = "scrape-fails"
    NOT_YET = "not-yet"
    """Too little was scraped since the start; it comes by itself."""
    NEEDS_FEATURE = "needs-feature"
    LACKING = "lacking"
    """This version has no such family."""
    UNCERTAIN = "uncertain"
    """The version is not known, so what a missing family means is not known either."""
    ABSENT = "absent"
    """The family should be there and is not."""
    NOT_MEASURABLE = "not-measurable"
    FAILED = "failed"
    """A recording rule that it reads could not be evaluated."""


class Unknown(msgspec.Struct, frozen=True):
    """One reason, as a word and as a sentence for people."""

    kind: UnknownKind
    reason: str


Reasons = tuple[Unknown, ...]
_OF_PRESENCE = {
    PresenceKind.NEEDS_FEATURE: UnknownKind.NEEDS_FEATURE,
    PresenceKind.LACKING: UnknownKind.LACKING,
    PresenceKind.UNCERTAIN: UnknownKind.UNCERTAIN,
}


def _one(kind: UnknownKind, reason: str) -> Reasons:
    return (Unknown(kind, reason),)


class Contract(Protocol):
    """What it means that no series of a name is there."""

    version: str | None

    def presence(self, name: str) -> Presence:
        """``name`` as a selector writes it."""
        ...

    def aliases(self, name: str) -> tuple[str, ...]:
        """Older and newer names of the same thing."""
        ...


class Knowledge:
    """One moment of one store. ``errors``: what recording rules failed with, by name."""

    def __init__(
        self,
        storage: Storage,
        at_ms: int,
        recorded: Mapping[str, Sequence[Rule]],
        contract: Contract | None,
        errors: Mapping[str, str],
    ) -> None:
        self._storage = storage
        self._at_ms = at_ms
        self._recorded = recorded
        self._contract = contract
        self._errors = errors
        self._ups = self._series("up")
        self._scrape = self._scrape_reason()
        self._selectors: dict[tuple[str | None, int, int, int], Reasons] = {}
        self._following: set[str] = set()

    def of(self, rule: Rule, values: Iterable[float]) -> tuple[Unknown | None, tuple[str, ...]]:
        """Why the rule's state says nothing, and what beside it was not judged. ``values`` of its active alerts."""
        aside: list[Unknown] = []
        reasons = self._part(rule.expression.part, aside)
        if not reasons:
            reasons = self._measured(rule.expression.measured, min(values, default=None))
        if not reasons:
            return None, tuple(dict.fromkeys(one.reason for one in aside))
        return Unknown(reasons[0].kind, "; ".join(dict.fromkeys(one.reason for one in reasons))), ()

    # Parts

    def _part(self, part: Part, aside: list[Unknown]) -> Reasons:
        if part.selector is not None:
            return self._selector(part.selector)
        if part.join is Join.ABSENT:
            return self._absent(part)
        if part.join is not Join.ANY:
            return tuple(reason for one in part.parts for reason in self._part(one, aside))
        branches = [(one, self._part(one, aside)) for one in part.parts if next(one.selectors(), None) is not None]
        reasons = tuple(reason for _, found in branches for reason in found)
        if branches and all(found for _, found in branches):
            return reasons
        judged = [one for one, found in branches if not found]
        aside.extend(reason for one, found in branches if not self._renamed(one, judged) for reason in found)
        return ()

    def _renamed(self, part: Part, judged: Sequence[Part]) -> bool:
        """Whether a branch is there for the older or newer name of what another branch has judged."""
        if self._contract is None:
            return False
        names = [one.name for other in judged for one in other.selectors() if one.name is not None]
        others = {new for one in part.selectors() if one.name is not None for new in self._contract.aliases(one.name)}
        return any(name == other or name.startswith(f"{other}_") for name in names for other in others)

    def _absent(self, part: Part) -> Reasons:
        """Of a family that this version lacks, absence says nothing; of any other it is what is asked for."""
        found: list[Unknown] = []
        for selector in part.selectors():
            name = selector.name
            if name is None or name in _SCRAPE or name in ALERT_SERIES:
                continue
            if self._contract is not None and self._contract.presence(name).kind is PresenceKind.LACKING:
                found.append(Unknown(UnknownKind.LACKING, self._contract.presence(name).reason))
            elif self._scrape and name not in self._recorded:
                found.append(Unknown(UnknownKind.SCRAPE_FAILS, self._scrape))
        return tuple(found)

    def _selector(self, selector: Selector) -> Reasons:
        name = selector.name
        if name is not None and (name == THRESHOLD or name in self._recorded):
            return self._made(selector, name)
        key = (name, selector.window_ms, selector.reach_ms, selector.least)
        known = self._selectors.get(key) if name is not None else None
        if known is None:
            known = self._selectors[key] = self._scraped(selector)
        return known

    def _made(self, selector: Selector, name: str) -> Reasons:
        """A recorded name: what cannot be known of the rules that record it, then its own window."""
        makers = [
            rule
            for rule in self._recorded.get(name, ())
            if all(selector.takes(label, template.text) for label, template in rule.labels.items())
        ]
        if name in self._following:
            return ()
        self._following.add(name)
        try:
            reasons = [self._part(rule.expression.part, []) for rule in makers]
        finally:
            self._following.discard(name)
        if name in self._errors:
            return _one(UnknownKind.FAILED, f"{name} could not be recorded: {self._errors[name]}")
        if reasons and all(reasons):
            return tuple(reason for found in reasons for reason in found)
        if selector.reach_ms and not self._filled(selector, self._series(name), 1):
            return _one(UnknownKind.NOT_YET, f"not yet: {name} was not recorded {_before(selector)}")
        return ()

    def _scraped(self, selector: Selector) -> Reasons:
        name = selector.name
        if name is not None and name in ALERT_SERIES:
            return ()
        if name is not None and name in _SCRAPE:
            seen = self._seen(selector, self._series(name))
            return () if seen else _one(UnknownKind.NOT_YET, "not scraped yet")
        if self._scrape and selector.offset_ms < LOOKBACK_MS:
            return _one(UnknownKind.SCRAPE_FAILS, self._scrape)
        series = self._series(name) if name is not None else self._storage.select(selector.matchers)
        if not self._seen(selector, series):
            return self._missing(selector, name)
        least = selector.least if selector.window_ms else 1
        if least == 1 or (self._scrapes(selector, least) if self._ups else self._filled(selector, series, least)):
            return ()
        return _one(UnknownKind.NOT_YET, f"not yet: fewer than {least} scrapes {_before(selector)}")

    def _missing(self, selector: Selector, name: str | None) -> Reasons:
        if name is None:
            return _one(UnknownKind.ABSENT, "no series has the labels that are asked for")
        presence = self._contract.presence(name) if self._contract is not None else None
        if presence is not None and presence.is_zero:
            return ()
        if selector.offset_ms >= LOOKBACK_MS and self._seen(Selector(name, ()), self._series(name)):
            return _one(UnknownKind.NOT_YET, f"not yet: {name} was not scraped {_before(selector)}")
        if presence is not None and presence.reason:
            return _one(_OF_PRESENCE[presence.kind], presence.reason)
        if presence is not None and presence.kind is PresenceKind.EXPORTED:
            version = f"vLLM {self._contract.version}" if self._contract is not None else "this vLLM"
            words = f"{version} exports {name}, and this server does not (--disable-log-stats?)"
            return _one(UnknownKind.ABSENT, words)
        return _one(UnknownKind.ABSENT, f"there is no series of {name}")

    # The store

    def _series(self, name: str) -> Sequence[Series]:
        return self._storage.select((Matcher(NAME, Match.EQUAL, name),))

    def _scrape_reason(self) -> str:
        """Why no scraped family can be judged; empty where the last scrape succeeded or nothing is scraped here."""
        if not self._ups:
            return ""
        for series in self._ups:
            last = bisect_right(series.times, self._at_ms) - 1
            if last < 0 or series.times[last] <= self._at_ms - LOOKBACK_MS or is_stale(series.values[last]):
                continue
            return "" if series.values[last] == 1 else _NEVER
        return "not scraped for five minutes"

    def _seen(self, selector: Selector, series: Iterable[Series]) -> bool:
        """Whether any series has a sample that the selector could see."""
        end = self._at_ms - selector.offset_ms
        start = self._at_ms - (selector.reach_ms or LOOKBACK_MS)
        if not selector.window_ms and selector.reach_ms:
            start -= LOOKBACK_MS
        for one in series:
            last = bisect_right(one.times, end) - 1
            if last >= 0 and one.times[last] > start and (selector.reach_ms or not is_stale(one.values[last])):
                return True
        return False

    def _filled(self, selector: Selector, series: Iterable[Series], least: int) -> bool:
        end, start = self._at_ms - selector.offset_ms, self._at_ms - selector.reach_ms
        return any(bisect_right(one.times, end) - bisect_right(one.times, start) >= least for one in series)

    def _scrapes(self, selector: Selector, least: int) -> bool:
        """Whether that many scrapes of the window succeeded; the newest are looked at first."""
        end, start = self._at_ms - selector.offset_ms, self._at_ms - selector.reach_ms
        for one in self._ups:
            window = range(bisect_right(one.times, end) - 1, bisect_right(one.times, start) - 1, -1)
            good = (index for index in window if one.values[index] == 1)
            if len(tuple(itertools.islice(good, least))) == least:
                return True
        return False

    # Thresholds that a histogram cannot tell

    def _measured(self, measured: Iterable[Measured], lowest_value: float | None) -> Reasons:
        for one in measured:
            buckets = self._buckets(one.source)
            threshold = self._threshold(one.threshold)
            if buckets is None or threshold is None:
                continue
            edge = min((_edge(series) for series in self._series(buckets)), default=math.inf)
            if threshold < edge < math.inf and (lowest_value is None or lowest_value <= edge):
                family = buckets.removesuffix(_BUCKET)
                return _one(
                    UnknownKind.NOT_MEASURABLE,
                    f"not measurable from the server: the threshold {plain(threshold)} lies below {plain(edge)}, "
                    f"the lowest bucket of {family}",
                )
        return ()

    def _buckets(self, source: str) -> str | None:
        if source in self._recorded:
            return next((rule.expression.quantile_of for rule in self._recorded[source]), None)
        return source if source.endswith(_BUCKET) else None

    def _threshold(self, threshold: float | Selector) -> float | None:
        """A number, or the last value of a recorded one."""
        if isinstance(threshold, float):
            return threshold
        if threshold.name is None:
            return None
        values = []
        for series in self._series(threshold.name):
            last = bisect_right(series.times, self._at_ms) - 1
            if last < 0 or series.times[last] <= self._at_ms - LOOKBACK_MS or is_stale(series.values[last]):
                continue
            if all(threshold.takes(name, value) for name, value in series.labels if name != NAME):
                values.append(series.values[last])
        return min(values, default=None)


def _edge(series: Series) -> float:
    """The upper edge of a bucket."""
    text = next((value for name, value in series.labels if name == "le"), "")
    try:
        return float(text)
    except ValueError:
        return math.inf


def _before(selector: Selector) -> str:
    """Where the selector looks, in words."""
    if not selector.window_ms:
        return f"{format_duration(selector.offset_ms)} ago"
    length = format_duration(selector.reach_ms - selector.offset_ms)
    return f"in the {length} before {format_duration(selector.offset_ms)} ago" if selector.offset_ms else f"in {length}"
