"""One state per server, judged from the launcher's word, ``/health`` and the log's milestones.

In: observations. Out: the state, since when, and the reason in words. It never decides on one refused connection:
two in a row are needed, because vLLM's port closes for a moment when a listener is replaced. ``saturated`` and
``stalled`` need series over time and are not judged here.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from agent.collect import Health, HealthKind
from agent.model import Clock, State

STREAK = 2


class Child(str, enum.Enum):
    """What the launcher says of its child."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A judged state. ``since`` is when it began (UTC)."""

    state: State
    since: datetime
    reason: str


class Liveness:
    """Keeps the standing of one server; every ``saw_*`` may change it.

    The first reason for ``unknown`` counts as a change too, so that a server that never answered is spoken of.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._child: Child | None = None
        self._health: Health | None = None
        self._failures = 0
        self._served = False
        self._loading: str | None = None
        self._observed = False
        self.standing = Standing(state=State.UNKNOWN, since=clock.now(), reason="nothing was observed yet")

    def saw_child(self, child: Child | None) -> bool:
        """The launcher's word; None when the launcher cannot be asked. True if the state changed."""
        if child is not self._child:
            self._health, self._failures, self._loading = None, 0, None
        self._child = child
        return self._judge()

    def saw_loading(self, progress: str | None) -> bool:
        """What the log says of a start in progress, e.g. ``loading weights 40 %``; None when it is none."""
        if self._loading is not None and progress is None:
            self._failures = 0  # what was refused while it loaded says nothing of a server that has just loaded
        self._loading = progress
        return self._judge()

    def saw_health(self, health: Health) -> bool:
        """An answer of ``/health``. True if the state changed."""
        self._failures = 0 if health.kind in (HealthKind.OK, HealthKind.ENGINE_DEAD) else self._failures + 1
        self._served = self._served or health.kind is HealthKind.OK
        self._health = health
        return self._judge()

    @property
    def refused(self) -> bool:
        """Whether the last answers were refused connections, enough of them to be believed."""
        return self._health is not None and self._health.kind is HealthKind.REFUSED and self._failures >= STREAK

    def _judge(self) -> bool:
        state, reason = self._by_launcher() if self._child is not None else self._by_health()
        understood = not self._observed and (state is not State.UNKNOWN or self._failures >= STREAK)
        self._observed = self._observed or understood
        if state is self.standing.state and not understood:
            self.standing = msgspec.structs.replace(self.standing, reason=reason)
            return False
        self.standing = Standing(state=state, since=self._clock.now(), reason=reason)
        return True

    def _by_launcher(self) -> tuple[State, str]:
        if self._child is Child.DEAD:
            return State.DEAD, "the server's process has ended"
        if self._child is Child.STOPPED:
            return State.STOPPED, "stopped on request"
        if self._child is Child.DRAINING:
            return State.DRAINING, "ending on request"
        if self._child is Child.STARTING:
            # An answer of /health is not enough: the launcher knows whether its own child gave it.
            return State.STARTING, self._loading or "the server has not answered /health yet"
        if self._health is not None and self._health.kind is HealthKind.OK:
            return State.SERVING, self._health.detail
        return self._ready_but(self._health)

    def _ready_but(self, health: Health | None) -> tuple[State, str]:
        if health is None:
            return State.SERVING, "the launcher saw it ready"
        if health.kind is HealthKind.ENGINE_DEAD:
            return State.DEAD, health.detail
        if self._failures >= STREAK:
            return State.UNKNOWN, health.detail
        return self.standing.state, health.detail

    def _by_health(self) -> tuple[State, str]:
        health = self._health
        if health is None:
            return State.UNKNOWN, self._loading or "nothing was observed yet"
        if health.kind is HealthKind.OK:
            return State.SERVING, health.detail
        if health.kind is HealthKind.ENGINE_DEAD:
            return State.DEAD, health.detail
        if self._failures < STREAK:
            return self.standing.state, health.detail
        if self._loading is not None:
            return State.STARTING, self._loading
        if health.kind is HealthKind.REFUSED and self._served:
            return State.DEAD, health.detail
        return State.UNKNOWN, health.detail
