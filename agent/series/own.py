"""The agent's own series as they are published in ``agent/metrics.yaml``: one source for code, rules and docs.

In: the file beside the package. Out: what each name is: its type, its labels in order, its help. Every stage that names
a ``vllm_agent_*`` series finds it here; the numbers are in :class:`agent.serve.AgentMetrics`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Literal

import msgspec
import yaml

OWN_PREFIX = "vllm_agent_"
Type = Literal["gauge", "counter", "histogram", "info"]
Source = Literal["watcher", "host", "gpu", "rules", "engine"]


class OwnMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. ``name`` is that of the samples (a counter with ``_total``, an info with ``_info``).

    ``labels`` in order, without ``le``. ``values`` are the fixed words of a label. ``buckets`` are a histogram's upper
    bounds. ``empty``: no series before the first event. ``see`` and ``note`` are for the page of the documentation.
    """

    name: str
    type: Type
    labels: tuple[str, ...] = ()
    unit: str = ""
    help: str
    values: Mapping[str, tuple[str, ...]] = {}
    buckets: tuple[float, ...] = ()
    source: Source
    empty: bool = False
    since: Literal["planned"] | None = None
    see: str | None = None
    note: str | None = None

    @property
    def exported(self) -> bool:
        """Whether ``/metrics`` has it today: it is not planned, and not recorded by rules in a server's series."""
        return self.since is None and self.source != "rules"


@functools.cache
def own_metrics() -> Mapping[str, OwnMetric]:
    """All of them by name, in the order of the file; read once (2 ms)."""
    text = (resources.files("agent") / "metrics.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, object]] = yaml.load(text, Loader=yaml.CBaseLoader)
    metrics = [msgspec.convert(_spread(entry), OwnMetric, strict=False) for entry in entries]
    return {metric.name: metric for metric in metrics}


def _spread(entry: Mapping[str, object]) -> dict[str, object]:
    """Lists are words with spaces between them in the file, which is read in half the time so."""
    values = entry.get("values") or {}
    assert isinstance(values, dict)
    return {
        **entry,
        "name": f"{OWN_PREFIX}{entry['name']}",
        "labels": str(entry.get("labels", "")).split(),
        "buckets": str(entry.get("buckets", "")).split(),
        "values": {label: str(words).split() for label, words in values.items()},
    }
