"""The agent's own metrics, named ``vllm_agent_<noun>_<unit>``, in a registry of their own.

In: small calls of the stages at the moment a thing happens. Out: the exposition. Labels are bounded:
names of servers, states, classes, actions and notifiers, never an id. Ages are computed when they are
read, so that a stuck loop shows.
"""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from agent import __version__
from agent.model import Clock, State

_REPAIR_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 90, 120, 180, 300, 600, 900, 1800, 3600)
_OPEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)


class AgentMetrics:
    """All metrics of the agent."""

    def __init__(self, clock: Clock, version: str = __version__) -> None:
        # A second series for every counter tells nobody anything.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._clock = clock

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"vllm_agent_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"vllm_agent_{name}", text, labels, registry=registry)

        Info("vllm_agent_build", "Version of the agent.", registry=registry).info({"version": version})
        self._state = gauge("server_state", "1 for the state the server is in.", "server", "state")
        self._starts = counter("server_starts", "Starts of the server.", "server", "reason")
        self._incidents = counter("incidents", "Incidents by class and outcome.", "server", "class", "outcome")
        self._open = gauge("incidents_open", "Incidents that are not closed.", "server")
        self._actions = counter("actions", "Actions by outcome.", "server", "action", "outcome")
        self._repair = Histogram(
            "vllm_agent_time_to_repair_seconds",
            "From the exit of the server to its verified repair.",
            buckets=_REPAIR_BUCKETS,
            registry=registry,
        )
        self._to_open = Histogram(
            "vllm_agent_time_to_open_seconds",
            "From the exit of the server to its opened incident.",
            buckets=_OPEN_BUCKETS,
            registry=registry,
        )
        self._scrape = gauge("scrape_duration_seconds", "Duration of the last scrape.", "server")
        self._age = gauge("scrape_age_seconds", "Age of the last good scrape.", "server")
        self._log = counter("log_bytes", "Log bytes read.", "server")
        self._dropped = counter("log_dropped_bytes", "Log bytes that could not be read in time.", "server")
        self._notifications = counter("notifications", "Notifications by outcome.", "notifier", "outcome")
        self._owed = gauge("notifications_pending", "Notifications that wait to be sent.", "notifier")
        self._breaker = gauge("breaker_open", "1 while the circuit breaker is open.", "server")
        self._frozen = gauge("frozen", "1 while all acting is stopped.")
        self._override = gauge("override_in_force", "1 while the agent's overrides are in force.", "server")
        self._journal = gauge("journal_healthy", "1 while the journal is written to the disk.")
        self._journal.set(1)
        ProcessCollector(registry=registry)

    def set_state(self, server: str, state: State) -> None:
        """1 for this state, 0 for all others."""
        for one in State:
            self._state.labels(server, one.value).set(one is state)

    def started(self, server: str, reason: str) -> None:
        """A start of the server; ``reason``: operator (a launcher's first), remedy (overrides in force), restart."""
        self._starts.labels(server, reason).inc()

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

    def _since(self, moment: float) -> Callable[[], float]:
        return lambda: max(0.0, self._clock.monotonic() - moment)
