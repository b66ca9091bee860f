"""What a scrape says to the watch itself: the sum of each family, and each engine's samples.

In: answers of ``/metrics``, one after the other. Out: sums by name and :class:`EngineSample`; or why there are none.
Histogram buckets, three of four lines, are passed over: no state and no proof is judged from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.collect import Scrape
from agent.model import NotMeasured
from agent.series import ExpositionError, Labels, Reader, name_of
from agent.watch.progress import WANTED, EngineSample, engine_samples


@dataclass(frozen=True, kw_only=True)
class Scraped:
    """One round. ``engines``: empty where an answer has no series of vLLM's, None where there was no answer."""

    scrape: Scrape | NotMeasured
    sums: Mapping[str, float] = field(default_factory=dict)
    engines: tuple[EngineSample, ...] | None = None

    @property
    def load(self) -> tuple[float, float] | None:
        """Requests that run and that wait, in all engines; None where nothing was told."""
        running = [one.running for one in self.engines or () if one.running is not None]
        waiting = [one.waiting for one in self.engines or () if one.waiting is not None]
        return (sum(running), sum(waiting)) if running else None


class ScrapeReader:
    """Reads the rounds of one server."""

    def __init__(self) -> None:
        self._reader: Reader[_Line] = Reader(_kept)

    def read(self, scrape: Scrape | NotMeasured) -> Scraped:
        """What it says."""
        if isinstance(scrape, NotMeasured):
            return Scraped(scrape=scrape)
        try:
            samples = self._reader.read(scrape.body, scrape.content_type).samples
        except ExpositionError as error:
            return Scraped(scrape=_unmeasured(f"{error.message}; is the port right?"))
        sums: dict[str, float] = {}
        for line, value, _ in samples:
            if value == value:
                sums[line.name] = sums.get(line.name, 0.0) + value
        if not any(name.startswith("vllm:") for name in sums):
            reason = "the server exports no vllm:* series (started with --disable-log-stats, or not vLLM)"
            return Scraped(scrape=_unmeasured(reason), engines=())
        wanted = [(line.labels, value, None) for line, value, _ in samples if line.engine]
        return Scraped(scrape=scrape, sums=sums, engines=engine_samples(wanted, scrape.at))


class _Line(NamedTuple):
    """A series, with what is asked of it at every round."""

    name: str
    labels: Labels
    engine: bool


def _kept(labels: Labels) -> _Line | None:
    name = name_of(labels)
    return None if name.endswith("_bucket") else _Line(name, labels, name in WANTED)


def _unmeasured(reason: str) -> NotMeasured:
    return NotMeasured(check="vllm metrics", reason=reason)
