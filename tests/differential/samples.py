"""The scene as Prometheus stores it: series with their samples and the markers where they end.

In: targets with what they exposed. Out: for each label set its samples by time. Written anew from Prometheus' rules of
a scrape (scrape/scrape.go) and not from the agent's store, so that both are judged: the target's labels are added,
``up`` tells each scrape, what an answer lacks or a failed scrape had before ends in a staleness marker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from agent.series import STALE, Labels, labels_of
from tests.differential.scenes import Target

Stored = dict[Labels, dict[int, float]]


def scraped(targets: Iterable[Target], names: Collection[str]) -> Stored:
    """The series of these metric names, ``up`` with them."""
    stored: Stored = defaultdict(dict)
    for target in targets:
        known: dict[Labels, Labels] = {}
        before: set[Labels] = set()
        for answer in target.answers:
            frame, at_ms = answer.frame, answer.scraped_ms
            now = set()
            for labels, value in (frame or {}).items():
                if labels not in known:
                    known[labels] = labels_of({**dict(labels), **target.labels})
                if dict(labels)["__name__"] in names:
                    stored[known[labels]][at_ms] = value
                    now.add(known[labels])
            _end(stored, before - now, at_ms)
            before = now
            if not target.agent:
                stored[labels_of({**target.labels, "__name__": "up"})][at_ms] = float(frame is not None)
    return stored


def recorded(written: Iterable[Mapping[int, Mapping[Labels, float]]]) -> Stored:
    """What recording rules wrote, each with what it gave at every evaluation."""
    stored: Stored = defaultdict(dict)
    for by_time in written:
        before: set[Labels] = set()
        for at_ms in sorted(by_time):
            for labels, value in by_time[at_ms].items():
                stored[labels][at_ms] = value
            _end(stored, before - set(by_time[at_ms]), at_ms)
            before = set(by_time[at_ms])
    return stored


def _end(stored: Stored, ended: Iterable[Labels], at_ms: int) -> None:
    for labels in ended:
        stored[labels][at_ms] = STALE
