"""The labels that a scrape adds, and the series that it writes about itself.

In: the labels that a server exposes and those of the target. Out: the labels that the stored series bears, as
Prometheus gives them with ``honor_labels: false`` (scrape/scrape.go, mutateSampleLabels).
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.series.data import NAME, Labels, labels_of

REPORT = ("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling")
"""What every scrape writes, one that failed as well. Nothing is relabelled here, so the last two are equal."""


def report_labels(target: Mapping[str, str]) -> tuple[Labels, ...]:
    """The labels of the series in ``REPORT``; none without a target."""
    return tuple(labels_of({**target, NAME: name}) for name in REPORT) if target else ()


def stamped(exposed: Labels, target: Mapping[str, str]) -> Labels:
    """The labels of a scraped series: the target's win, an exposed one of that name gets ``exported_`` before it."""
    if not target:
        return exposed
    labels = {name: value for name, value in exposed if name not in target}
    present = {name for name, _ in exposed} | set(target)
    clashing = sorted(((name, value) for name, value in exposed if name in target), key=lambda pair: len(pair[0]))
    for name, value in clashing:
        renamed = f"exported_{name}"
        while renamed in present:
            renamed = f"exported_{renamed}"
        present.add(renamed)
        labels[renamed] = value
    return labels_of({**labels, **target})
