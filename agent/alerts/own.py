"""What the agent exports itself, and so what a missing series of its own means.

In: ``agent/metrics.yaml``. Out: the same questions answered as :class:`agent.series.Contract` answers them for vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.series import OwnMetric, Presence, PresenceKind, own_metrics

_SUFFIXES = ("_bucket", "_sum", "_count")
_GONE = {
    "gpu": "no GPU of the server is read here, or its driver does not tell {name}",
    "host": "this host does not tell {name}",
    "engine": "{name} comes from the plugin inside vLLM, which is not loaded",
}


class OwnContract:
    """Counters and histograms start empty, gauges of the watcher too; gauges of a card, a host or a plugin do not."""

    version: str | None = None

    def __init__(self, metrics: Mapping[str, OwnMetric] | None = None) -> None:
        self._metrics = own_metrics() if metrics is None else metrics

    def presence(self, name: str) -> Presence:
        """``name`` as a selector writes it."""
        metric = self._metrics.get(name)
        for suffix in _SUFFIXES:
            metric = metric or self._metrics.get(name.removesuffix(suffix))
        if metric is None:
            return Presence(PresenceKind.FOREIGN)
        if metric.since is not None:
            return Presence(PresenceKind.LACKING, f"this agent does not export {name} yet")
        if metric.source == "engine" or (metric.type == "gauge" and metric.source in _GONE):
            return Presence(PresenceKind.NEEDS_FEATURE, _GONE[metric.source].format(name=name))
        return Presence(PresenceKind.STARTS_EMPTY)

    def aliases(self, name: str) -> tuple[str, ...]:
        """The agent has one name for each thing."""
        return ()
