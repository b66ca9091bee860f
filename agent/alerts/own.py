"""What the agent exports itself, and so what a missing series of its own means.

In: ``agent/metrics.yaml``, and the names that are exported now. Out: the same questions answered as
:class:`agent.series.Contract` answers them for vLLM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agent.series import OwnMetric, Presence, PresenceKind, own_metrics

_SUFFIXES = ("_bucket", "_sum", "_count")
_GONE = {
    "gpu": "no GPU of the server is read here, or its driver does not tell {name}",
    "host": "this host does not tell {name}",
    "engine": "{name} comes from the plugin inside vLLM, which is not loaded",
}


class OwnContract:
    """What the watcher counts starts empty. What a card, a host or a plugin tells is there or is not measured.

    Events of a card start empty too, but only while the card is read at all.
    """

    version: str | None = None

    def __init__(self, metrics: Mapping[str, OwnMetric] | None = None) -> None:
        self._metrics = own_metrics() if metrics is None else metrics
        self._measured: frozenset[str] = frozenset()

    def see(self, names: Collection[str]) -> None:
        """The names of all samples that are there now."""
        metrics = (self._metrics.get(name) for name in names)
        self._measured = frozenset(metric.source for metric in metrics if metric is not None)

    def presence(self, name: str) -> Presence:
        """``name`` as a selector writes it."""
        metric = self._metrics.get(name)
        for suffix in _SUFFIXES:
            metric = metric or self._metrics.get(name.removesuffix(suffix))
        if metric is None:
            return Presence(PresenceKind.FOREIGN)
        if metric.since is not None:
            return Presence(PresenceKind.LACKING, f"this agent does not export {name} yet")
        if metric.source in _GONE and not (metric.empty and metric.source in self._measured):
            return Presence(PresenceKind.NEEDS_FEATURE, _GONE[metric.source].format(name=name))
        return Presence(PresenceKind.STARTS_EMPTY)

    def aliases(self, name: str) -> tuple[str, ...]:
        """The agent has one name for each thing."""
        return ()
