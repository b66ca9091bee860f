"""The agent's own metrics, named ``vllm_agent_<noun>_<unit>``, in a registry of their own.

In: small calls of the stages at the moment a thing happens, and samples that collectors bring (cards, host, alerts,
engines), each source's all at once, so that what is gone is gone. Out: the exposition, and the same numbers as samples
for the in-process store. Names, types, labels, helps and buckets come from ``agent/metrics.yaml``. Labels are bounded:
names of servers, states, classes, actions and notifiers, never an id. Ages are computed when they are read, so that a
stuck loop shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from agent import __version__
from agent.model import Clock, Sample, State
from agent.series import OWN_PREFIX, own_metrics
from agent.serve.brought import Brought

_STARTS = f"{OWN_PREFIX}server_starts_total"


class AgentMetrics:
    """All metrics of the agent. ``strict``: a brought sample that fits no published metric raises ValueError."""

    def __init__(self, clock: Clock, version: str = __version__, *, strict: bool = False) -> None:
        # A second series for every counter tells nobody anything.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._clock = clock
        self._kept: dict[str, Collector] = {}
        self._make_info(version)
        self._make_metrics_of_servers()
        self._make_metrics_of_the_agent()
        brought = (one for one in own_metrics().values() if one.exported and one.name not in self._kept)
        self._brought = Brought({metric.name: metric for metric in brought}, strict=strict)
        self.registry.register(self._brought)
        ProcessCollector(registry=self.registry)

    def _make_metrics_of_servers(self) -> None:
        self._state = self._gauge("server_state")
        self._incidents = self._counter("incidents_total")
        self._open = self._gauge("incidents_open")
        self._actions = self._counter("actions_total")
        self._repair = self._histogram("time_to_repair_seconds")
        self._to_open = self._histogram("time_to_open_seconds")
        self._scrape = self._gauge("scrape_duration_seconds")
        self._age = self._gauge("scrape_age_seconds")
        self._log = self._counter("log_bytes_total")
        self._dropped = self._counter("log_dropped_bytes_total")
        self._breaker = self._gauge("breaker_open")
        self._override = self._gauge("override_in_force")
        self._canaries = self._counter("canary_requests_total")
        self._canary_time = self._histogram("canary_seconds")

    def _make_metrics_of_the_agent(self) -> None:
        self._notifications = self._counter("notifications_total")
        self._owed = self._gauge("notifications_pending")
        self._frozen = self._gauge("frozen")
        self._evaluation = self._histogram("rule_evaluation_seconds")
        self._evaluated = self._gauge("rule_last_evaluation_timestamp_seconds")
        self._journal = self._gauge("journal_healthy")
        self._journal.set(1)

    # -- what the stages say --------------------------------------------------------------------------------

    def set_state(self, server: str, state: State) -> None:
        """1 for this state, 0 for all others."""
        for one in State:
            self._state.labels(server, one.value).set(one is state)

    def set_starts(self, server: str, counts: Mapping[str, int]) -> None:
        """Starts of the server by reason (operator, planned, remedy, restart), counted since the first ever seen."""
        self.bring(f"starts/{server}", [_start(server, reason, count) for reason, count in counts.items()])

    def incident(self, server: str, fault: str, outcome: str) -> None:
        """``outcome``: opened, resolved, unresolved."""
        self._incidents.labels(server, fault, outcome).inc()

    def set_incidents_open(self, server: str, count: int) -> None:
        """How many are open now."""
        self._open.labels(server).set(count)

    def action(self, server: str, action: str, outcome: str) -> None:
        """``outcome`` is a final :class:`agent.model.ActionState`."""
        self._actions.labels(server, action, outcome).inc()

    def time_to_repair(self, seconds: float) -> None:
        """From the exit to the verified repair."""
        self._repair.observe(seconds)

    def time_to_open(self, seconds: float) -> None:
        """From the exit to the opened incident."""
        self._to_open.observe(seconds)

    def scraped(self, server: str, duration_seconds: float) -> None:
        """A good scrape ended now."""
        self._scrape.labels(server).set(duration_seconds)
        self._age.labels(server).set_function(self._since(self._clock.monotonic()))

    def log_read(self, server: str, count: int, dropped: int = 0) -> None:
        """More log bytes were read, or lost."""
        self._log.labels(server).inc(count)
        self._dropped.labels(server).inc(dropped)

    def canary(self, server: str, engine: str, outcome: str, seconds: float | None = None) -> None:
        """A canary ended; ``seconds`` where it was answered."""
        self._canaries.labels(server, engine, outcome).inc()
        if seconds is not None:
            self._canary_time.labels(server).observe(seconds)

    def evaluated(self, server: str, seconds: float) -> None:
        """All rules of a target were evaluated now; ``server`` is empty for the agent's own series."""
        self._evaluation.labels(server).observe(seconds)
        self._evaluated.labels(server).set(self._clock.now().timestamp())

    def notification(self, notifier: str, outcome: str) -> None:
        """``outcome``: sent, failed (tried again), parked (refused for good)."""
        self._notifications.labels(notifier, outcome).inc()

    def set_notifications_pending(self, notifier: str, count: int) -> None:
        """How many wait."""
        self._owed.labels(notifier).set(count)

    def set_breaker(self, server: str, is_open: bool) -> None:
        """Whether the breaker is open."""
        self._breaker.labels(server).set(is_open)

    def set_frozen(self, frozen: bool) -> None:
        """Whether all acting is stopped."""
        self._frozen.set(frozen)

    def set_override(self, server: str, in_force: bool) -> None:
        """Whether overrides are in force."""
        self._override.labels(server).set(in_force)

    def set_journal(self, healthy: bool) -> None:
        """Whether the journal is on the disk."""
        self._journal.set(healthy)

    # -- what others measure --------------------------------------------------------------------------------

    def bring(self, source: str, samples: Sequence[Sample]) -> None:
        """Replace all samples of ``source`` (any text that names who brings them: ``gpu/chat``); none = it is gone.

        Counters are absolute. A name that is not published, is planned or is kept by a method of this class, and a
        label too many or too few, is left out and logged once (raises ValueError where ``strict``).
        """
        self._brought.replace(source, samples)

    def samples(self) -> list[Sample]:
        """Every ``vllm_agent_*`` sample as it stands, without rendering text (0.3 ms for 150)."""
        found = self._brought.samples()
        for collector in self._kept.values():
            for family in collector.collect():
                found.extend(Sample(one.name, one.labels, one.value) for one in family.samples)
        return found

    def _since(self, moment: float) -> Callable[[], float]:
        return lambda: max(0.0, self._clock.monotonic() - moment)

    # -- how a published metric is made ---------------------------------------------------------------------

    def _make_info(self, version: str) -> None:
        published = own_metrics()[f"{OWN_PREFIX}build_info"]
        info = Info(published.name.removesuffix("_info"), published.help, registry=self.registry)
        info.info({"version": version})
        self._kept[published.name] = info

    def _gauge(self, name: str) -> Gauge:
        published = own_metrics()[OWN_PREFIX + name]
        gauge = Gauge(published.name, published.help, published.labels, registry=self.registry)
        self._kept[published.name] = gauge
        return gauge

    def _counter(self, name: str) -> Counter:
        published = own_metrics()[OWN_PREFIX + name]
        counter = Counter(published.name, published.help, published.labels, registry=self.registry)
        self._kept[published.name] = counter
        return counter

    def _histogram(self, name: str) -> Histogram:
        published = own_metrics()[OWN_PREFIX + name]
        buckets, registry = published.buckets, self.registry
        histogram = Histogram(published.name, published.help, published.labels, buckets=buckets, registry=registry)
        self._kept[published.name] = histogram
        return histogram


def _start(server: str, reason: str, count: int) -> Sample:
    return Sample(_STARTS, {"server": server, "reason": reason}, float(count))
