"""Samples that others measure, as one collector of the registry.

In: all samples of one source at once, counters as absolute values. Out: metric families in the order of
``agent/metrics.yaml``, and the samples as they came. What fits no published metric is left out: one wrong series, or
one that is there twice, makes Prometheus drop the whole scrape. It is said once, in the log, since it would come again
with every round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.registry import Collector

from agent.model import Sample
from agent.series import OwnMetric

_log = logging.getLogger(__name__)

_Key = tuple[str, tuple[str, ...]]


class Brought(Collector):
    """Samples by source; of a series that two sources bring, the one who brought last holds."""

    def __init__(self, published: Mapping[str, OwnMetric], *, strict: bool) -> None:
        self._published = published
        self._strict = strict
        self._by_source: dict[str, dict[_Key, Sample]] = {}
        self._told: set[str] = set()

    def replace(self, source: str, samples: Sequence[Sample]) -> None:
        """Forget what the source brought before, and hold these. Raises ValueError where strict."""
        found: dict[_Key, Sample] = {}
        for sample in samples:
            key = self._key(sample)
            if key is not None:
                found[key] = sample
        self._by_source.pop(source, None)  # so that it is the last again
        if found:
            self._by_source[source] = found

    def samples(self) -> list[Sample]:
        """All samples, each series once."""
        found: dict[_Key, Sample] = {}
        for samples in self._by_source.values():
            found.update(samples)
        return list(found.values())

    def describe(self) -> list[Metric]:
        """The families, for the registry's check on names that are there twice."""
        return [_family(metric) for metric in self._published.values()]

    def collect(self) -> Iterator[Metric]:
        """The families that have samples."""
        families: dict[str, Metric] = {}
        for sample in self.samples():
            family = families.get(sample.name)
            if family is None:
                family = families[sample.name] = _family(self._published[sample.name])
            family.add_sample(sample.name, dict(sample.labels), sample.value)
        yield from (families[name] for name in self._published if name in families)

    def _key(self, sample: Sample) -> _Key | None:
        """Name and label values; None where the sample is none of the published metrics."""
        published = self._published.get(sample.name)
        if published is None:
            self._refuse(f"agent/metrics.yaml has no {sample.name} that can be brought")
            return None
        if len(sample.labels) != len(published.labels) or any(one not in sample.labels for one in published.labels):
            self._refuse(f"{sample.name} has the labels {sorted(sample.labels)}, not {sorted(published.labels)}")
            return None
        return sample.name, tuple([sample.labels[one] for one in published.labels])

    def _refuse(self, reason: str) -> None:
        if self._strict:
            raise ValueError(reason)
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("a sample is left out: %s", reason)


def _family(metric: OwnMetric) -> Metric:
    """A counter's family is named without its ``_total``, as prometheus_client has it."""
    name = metric.name.removesuffix("_total") if metric.type == "counter" else metric.name
    return Metric(name, metric.help, metric.type)
