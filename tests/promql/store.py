"""The samples that a case file loads, as PromQL reads them.

In: load and clear commands. Out: a storage, which also notes which of the series that a query read held what this
evaluator does not know: native histograms, or start timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.series.data import NAME, Labels, Match, Matcher, Series, labels_of
from tests.promql.cases import Load
from tests.promql.notation import HISTOGRAM, OMITTED, Mark

_CLASSIC = re.compile(r"(.+)_(?:bucket|count|sum)")


class Store:
    """Samples by series. ``foreign``: why a series that was read since :meth:`forget` cannot be judged."""

    def __init__(self) -> None:
        self._samples: dict[Labels, dict[int, float]] = {}
        self._foreign: dict[Labels, str] = {}
        self._series: list[Series] | None = None
        self.foreign: dict[str, None] = {}

    def clear(self) -> None:
        """Forget all samples."""
        self._samples.clear()
        self._foreign.clear()
        self._series = None

    def forget(self) -> None:
        """Begin a new case."""
        self.foreign = {}

    def load(self, command: Load) -> None:
        """Add the samples of one load command; one that is there already stays."""
        for labels, points in command.series:
            samples = self._samples.setdefault(labels, {})
            for index, point in enumerate(points):
                if isinstance(point, Mark):
                    continue
                samples.setdefault(index * command.step_ms, point)
            self._mark(labels, points, command)
        self._series = None

    def _mark(self, labels: Labels, points: Sequence[float | Mark], command: Load) -> None:
        if HISTOGRAM in points:
            self._foreign[labels] = "reads native histograms"
        elif labels in command.started:
            self._foreign[labels] = "reads start timestamps, which are behind a feature flag"
        if command.converts:
            pairs = dict(labels)
            base = _CLASSIC.fullmatch(pairs.get(NAME, ""))
            if base and any(point is not OMITTED for point in points):
                native = labels_of({**pairs, NAME: base[1], "le": ""})
                self._samples.setdefault(native, {})
                self._foreign[native] = "reads native histograms"

    def select(self, matchers: Sequence[Matcher]) -> Sequence[Series]:
        """All series that match, as the evaluator asks for them."""
        tests = [_Test(matcher) for matcher in matchers]
        chosen = []
        for series in self._all():
            pairs = dict(series.labels)
            if all(test.passes(pairs.get(test.name, "")) for test in tests):
                chosen.append(series)
                if series.labels in self._foreign:
                    self.foreign[self._foreign[series.labels]] = None
        return chosen

    def _all(self) -> list[Series]:
        if self._series is None:
            self._series = []
            for labels in sorted(self._samples):
                series = Series(labels)
                for time, value in sorted(self._samples[labels].items()):
                    series.append(time, value)
                self._series.append(series)
        return self._series


class _Test:
    def __init__(self, matcher: Matcher) -> None:
        self.name = matcher.name
        self._value = matcher.value
        self._pattern = matcher.test()
        self._negated = matcher.match in (Match.NOT_EQUAL, Match.NOT_REGEX)

    def passes(self, value: str) -> bool:
        found = value == self._value if self._pattern is None else self._pattern.search(value) is not None
        return found != self._negated
