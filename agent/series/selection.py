"""Which series are kept, and for how long.

In: the selectors of all rules and faults, each with how far it looks back, and the names that recording rules write.
Out: for a label set the time that its samples are kept, or None where nobody asks for it. Nothing else decides what
the store holds: a rule that asks for fifteen minutes of one histogram makes the store keep just that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agent.series.data import NAME, Labels, Match, Matcher

LOOKBACK_MS = 300_000
"""Prometheus' lookback delta: an instant selector sees a sample of the last five minutes."""
SLACK_MS = 5_000
"""What a range selector's window is kept longer than it is, for an evaluation that comes late."""
SLOW_RECORDING_MS = 60_000
SLOW_RECORDING_KEPT_MS = 24 * 3_600_000
"""A recording written once a minute or less often costs 23 KB a series and day, and long windows read it."""
Test = Callable[[Labels], bool]


class Need(msgspec.Struct, frozen=True):
    """One selector and how far it looks back beside the lookback: its range, subquery and offset in all, in ms.

    ``lookback`` False: a range selector, which sees nothing before its range.
    """

    matchers: tuple[Matcher, ...]
    window_ms: int = 0
    lookback: bool = True


class Selection:
    """``recordings`` maps the name that a recording rule writes to the interval of its group, in ms."""

    def __init__(
        self, needs: Iterable[Need] = (), *, recordings: Mapping[str, int] | None = None, lookback_ms: int = LOOKBACK_MS
    ) -> None:
        self._lookback_ms = lookback_ms
        self._recordings = dict(recordings or {})
        self._named: dict[str, list[tuple[Test, int]]] = {}
        self._any_name: list[tuple[Test, int]] = []
        kept = [(need, need.window_ms + (lookback_ms if need.lookback else SLACK_MS)) for need in needs]
        for need, kept_ms in sorted(kept, key=lambda one: -one[1]):
            name = _exact_name(need.matchers)
            place = self._any_name if name is None else self._named.setdefault(name, [])
            place.append((tester(need.matchers), kept_ms))

    @classmethod
    def all(cls, window_ms: int) -> Selection:
        """Every series, for ``window_ms`` and the lookback."""
        return cls([Need((), window_ms)])

    def kept_ms(self, labels: Labels) -> int | None:
        """How long a sample of this series is kept; None: it is not kept at all."""
        name = next((value for label, value in labels if label == NAME), "")
        longest = self._recorded_ms(name)
        for needs in (self._named.get(name, ()), self._any_name):
            for test, kept_ms in needs:
                if kept_ms <= longest:
                    break
                if test(labels):
                    longest = kept_ms
        return None if longest < 0 else longest

    def _recorded_ms(self, name: str) -> int:
        interval_ms = self._recordings.get(name)
        if interval_ms is None:
            return -1
        return self._lookback_ms + (SLOW_RECORDING_KEPT_MS if interval_ms >= SLOW_RECORDING_MS else 0)


def tester(matchers: Sequence[Matcher]) -> Test:
    """Whether a label set meets all matchers; an absent label is the empty string. Raises re2.error."""
    tests = [_test(matcher) for matcher in matchers]

    def meets(labels: Labels) -> bool:
        pairs = dict(labels)
        return all(test(pairs) for test in tests)

    return meets


def _test(matcher: Matcher) -> Callable[[Mapping[str, str]], bool]:
    name, wanted, pattern = matcher.name, matcher.value, matcher.test()
    positive = matcher.match in (Match.EQUAL, Match.REGEX)
    if pattern is None:
        return lambda pairs: (pairs.get(name, "") == wanted) is positive
    matches = pattern.fullmatch
    return lambda pairs: (matches(pairs.get(name, "")) is not None) is positive


def _exact_name(matchers: Sequence[Matcher]) -> str | None:
    return next((one.value for one in matchers if one.name == NAME and one.match is Match.EQUAL), None)
