"""One state per engine and one per server: starting, serving, saturated, stalled, dead, draining, paused, stopped,
unknown.

In: observations, each when it is made: the launcher's word, ``/health``, the log's milestones, the engines' series,
process readings, canaries, a pause. Out: the standing of each engine and the server's, which is the worst of them and
names it. It sends nothing and waits for nothing; what should be asked next it says (:meth:`Liveness.wants_canary`,
:meth:`Liveness.wants_activity`).

Nothing is decided on one instant. Two refused connections in a row are needed, because vLLM's port closes for a moment
when a listener is replaced. ``/health`` says 200 through every hang (seen on vLLM 0.32), so with work and without
movement an engine is *unknown*, and *stalled* only on positive evidence (:mod:`agent.watch.stall`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from agent.collect import CanaryResult, Health, HealthKind, ProcessReading
from agent.model import Clock, NotMeasured, State
from agent.watch.activity import API, Activity, GpuWork
from agent.watch.canaries import SPACING_SECONDS, Canaries
from agent.watch.engine import Engine
from agent.watch.progress import ONLY_ENGINE, EngineSample
from agent.watch.shape import Shape
from agent.watch.stall import HALT_SECONDS, QUIET_SECONDS

STREAK = 2
# From here on a flat engine's processes are read at every round, so that the evidence is there when it is needed.
LOOK_SECONDS = 2.0
# /metrics was read before and is not any more.
BLIND_SECONDS = 30.0
WORST_FIRST = (State.STALLED, State.UNKNOWN, State.PAUSED, State.SATURATED, State.SERVING)


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
    """Keeps the standing of one server; every ``saw_*`` may change it and tells whether the state changed.

    The first reason for ``unknown`` counts as a change too, so that a server that never answered is spoken of.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._child: Child | None = None
        self._health: Health | None = None
        self._failures = 0
        self._served = False
        self._loading: str | None = None
        self._shutdown = False
        self._paused = False
        self._pause_asked_at: float | None = None
        self._observed = False
        self._shape = Shape()
        self._engines: dict[str, Engine] = {}
        self._standings: dict[str, Standing] = {}
        self._scraped_at: float | None = None
        self._activity = Activity()
        self._canaries = Canaries()
        self._before = (State.UNKNOWN, "nothing was observed yet")
        self.standing = Standing(state=State.UNKNOWN, since=clock.now(), reason="nothing was observed yet")

    # -- what is observed ---------------------------------------------------------------------------------

    def saw_child(self, child: Child | None) -> bool:
        """The launcher's word; None when the launcher cannot be asked."""
        if child is not self._child:
            self._health, self._failures, self._loading = None, 0, None
            if child in (Child.STARTING, Child.DEAD, Child.STOPPED):
                self._forget()
        self._child = child
        return self._judge()

    def saw_loading(self, progress: str | None) -> bool:
        """What the log says of a start in progress, e.g. ``loading weights 40 %``; None when it is none."""
        if progress == self._loading:
            return False
        if self._loading is not None and progress is None:
            self._failures = 0  # what was refused while it loaded says nothing of a server that has just loaded
        self._loading = progress
        return self._judge()

    def saw_shutdown(self, requested: bool) -> bool:
        """Whether the present start's log says that it was asked to end (a drain may follow)."""
        if requested is self._shutdown:
            return False
        self._shutdown = requested
        return self._judge()

    def saw_health(self, health: Health) -> bool:
        """An answer of ``/health``."""
        self._failures = 0 if health.kind in (HealthKind.OK, HealthKind.ENGINE_DEAD) else self._failures + 1
        self._served = self._served or health.kind is HealthKind.OK
        self._health = health
        return self._judge()

    def saw_shape(self, shape: Shape) -> None:
        """What the server's command line says (:func:`agent.watch.shape.shape_of`)."""
        self._shape = shape

    def saw_engines(self, samples: Iterable[EngineSample], at: float) -> bool:
        """One scrape of ``/metrics``, complete at monotonic ``at``; without samples there is one engine and no
        series (``--disable-log-stats``), and only a canary can tell of it.
        """
        self._scraped_at = at
        seen = {sample.engine: sample for sample in samples}
        for gone in self._engines.keys() - (seen.keys() or {ONLY_ENGINE}):
            del self._engines[gone]
        for name in seen or (ONLY_ENGINE,):
            engine = self._engines.setdefault(name, Engine(name, self._activity, self._canaries))
            if name in seen:
                engine.saw(seen[name])
        return self._judge()

    def saw_activity(self, reading: ProcessReading | NotMeasured, gpu: GpuWork, at: float) -> bool:
        """The server's processes at monotonic ``at``, and what its own GPUs did then."""
        if isinstance(reading, ProcessReading) and reading.members:
            self._activity.saw(reading.members, gpu, at)
        return self._judge()

    def saw_canary(self, result: CanaryResult) -> bool:
        """A canary ended."""
        self._see_paused(result.paused)
        answered = self._canaries.saw(result)
        if answered and result.engine in self._engines:
            self._engines[result.engine].touched(result.ended_at)
        return self._judge()

    def canary_sent(self, engine: str, at: float) -> None:
        """A canary is on its way; from now on it is work that ``engine`` has."""
        self._canaries.sent(engine, at)

    def saw_paused(self, paused: bool | None) -> bool:
        """``/is_paused``, False also where the server has no such endpoint; None: it was asked and did not say. Nothing
        is called stalled whose pause was not asked for since its last movement: a paused engine rests like a dead one.
        """
        self._see_paused(paused)
        return self._judge()

    def _see_paused(self, paused: bool | None) -> None:
        now = self._clock.monotonic()
        self._pause_asked_at = now
        if paused is not None:
            if paused or self._paused:
                for engine in self._engines.values():
                    engine.rested(now)
            self._paused = paused

    def saw_heartbeat(self, engine: str, beat: float, at: float) -> bool:
        """A counter that the engine's own loop raises; any change is a sign of life."""
        if engine in self._engines:
            self._engines[engine].beat(beat, at)
        return self._judge()

    # -- what should be asked -----------------------------------------------------------------------------

    def wants_canary(self, now: float, every: float = SPACING_SECONDS) -> str | None:
        """The engine to send a canary to now, or None; at most one in ``every`` seconds. Only a server that serves is
        asked, and only an engine that is idle or suspect; one with a stopped process comes first.
        """
        if not self._open or self._paused or self._shape.role is not None:
            return None
        due = [engine for engine in self._engines.values() if self._canaries.due(engine.name, now, every)]
        for wanted in (Engine.idle_and_halted, Engine.suspect, Engine.idle):
            ready = [engine for engine in due if wanted(engine, now)]
            if ready:
                return min(ready, key=lambda engine: engine.proven_at).name
        return None

    @property
    def canary_not_measured(self) -> NotMeasured | None:
        """Why no canary is sent, where that is so for good."""
        if self._shape.role is not None:
            reason = f"not sent: the server is the {self._shape.role} side of a disaggregated pair"
            return NotMeasured(check="canary", reason=reason)
        lasting = next((one for one in self._canaries.results.values() if one.lasting), None)
        return NotMeasured(check="canary", reason=f"not sent: {lasting.detail}") if lasting else None

    def wants_activity(self, now: float) -> bool:
        """Whether processes (and a pause) should be read at this round, not only now and then."""
        if not self._open:
            return self._failures > 0 and self._served
        return any(engine.wants_look(now, LOOK_SECONDS) for engine in self._engines.values())

    def stands_still(self, now: float) -> bool:
        """Whether an engine has work and has not moved for LOOK_SECONDS."""
        flat = [engine.flat(now) for engine in self._engines.values()]
        return any(seconds is not None and seconds >= LOOK_SECONDS for seconds in flat)

    # -- what is judged -----------------------------------------------------------------------------------

    @property
    def engines(self) -> Mapping[str, Standing]:
        """The standing of each engine, by label; empty while the server does not serve."""
        return dict(self._standings)

    @property
    def canaries(self) -> Mapping[str, CanaryResult]:
        """The last canary's result of each engine."""
        return dict(self._canaries.results)

    @property
    def health(self) -> Health | None:
        """The last answer of ``/health`` since the launcher's word changed."""
        return self._health

    @property
    def refused(self) -> bool:
        """Whether the last answers were refused connections, enough of them to be believed."""
        return self._health is not None and self._health.kind is HealthKind.REFUSED and self._failures >= STREAK

    @property
    def _open(self) -> bool:
        """Whether the server is up and nothing else is known of it: only then its engines are judged."""
        if self._child is not None and self._child is not Child.READY:
            return False
        return not self._shutdown and self._health is not None and self._health.kind is HealthKind.OK

    def _forget(self) -> None:
        """Another process: nothing that was seen of the last one counts."""
        self._engines.clear()
        self._standings.clear()
        self._activity.clear()
        self._canaries.clear()
        self._scraped_at, self._pause_asked_at = None, None
        self._paused, self._shutdown = False, False

    def _judge(self) -> bool:
        self._before = self._by_launcher() if self._child is not None else self._by_health()
        state, reason = self._with_engines(*self._before)
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
            return self._up(self._health)
        return self._ready_but(self._health)

    def _up(self, health: Health) -> tuple[State, str]:
        if self._shutdown:
            return State.DRAINING, "its log says that it was asked to end"
        return State.SERVING, health.detail

    def _ready_but(self, health: Health | None) -> tuple[State, str]:
        if health is None:
            return State.SERVING, "the launcher saw it ready"
        if health.kind is HealthKind.ENGINE_DEAD:
            return State.DEAD, health.detail
        if self._failures >= STREAK:
            return State.UNKNOWN, health.detail
        return self._before[0], health.detail

    def _by_health(self) -> tuple[State, str]:
        health = self._health
        if health is None:
            return State.UNKNOWN, self._loading or "nothing was observed yet"
        if health.kind is HealthKind.OK:
            return self._up(health)
        if health.kind is HealthKind.ENGINE_DEAD:
            return State.DEAD, health.detail
        if self._failures < STREAK:
            return self._before[0], health.detail
        if self._loading is not None:
            return State.STARTING, self._loading
        if health.kind is HealthKind.REFUSED and self._served:
            return State.DEAD, health.detail
        return State.UNKNOWN, health.detail

    # -- the engines' share -------------------------------------------------------------------------------

    def _with_engines(self, state: State, reason: str) -> tuple[State, str]:
        now = self._clock.monotonic()
        silent = self._health is not None and self._health.kind is HealthKind.TIMEOUT and self._served
        if state is not State.SERVING and not (state is State.UNKNOWN and silent and not self._shutdown):
            self._standings.clear()
            return state, reason
        if self._paused:
            return State.PAUSED, "paused on request (/is_paused)"
        self._judge_engines(now)
        if state is State.UNKNOWN:
            return self._unanswered(reason, now)
        if self._scraped_at is not None and now - self._scraped_at > BLIND_SECONDS:
            return State.UNKNOWN, f"/metrics has not been read for {now - self._scraped_at:.0f} s"
        return self._worst() or (state, reason)

    def _judge_engines(self, now: float) -> None:
        for name in self._standings.keys() - self._engines.keys():
            del self._standings[name]
        for name, engine in self._engines.items():
            state, reason = engine.judge(now, self._shape, self._pause_asked_at)
            known = self._standings.get(name)
            since = known.since if known is not None and known.state is state else self._clock.now()
            self._standings[name] = Standing(state=state, since=since, reason=reason)

    def _worst(self) -> tuple[State, str] | None:
        """The worst engine; where several are equal, the one that has been so for longest."""
        if not self._standings:
            return None
        rank = {state: place for place, state in enumerate(WORST_FIRST)}
        name, one = min(self._standings.items(), key=lambda item: (rank[item[1].state], item[1].since, item[0]))
        if len(self._standings) == 1 or one.state is State.SERVING:
            return one.state, one.reason
        return one.state, f"engine {name}: {one.reason}"

    def _unanswered(self, reason: str, now: float) -> tuple[State, str]:
        """``/health`` timed out: the API server is overloaded, or nobody is there to answer."""
        halted = self._activity.halted(API, now)
        if halted is not None and halted.seconds >= max(HALT_SECONDS, QUIET_SECONDS):
            return State.STALLED, str(halted)
        worst = self._worst()
        if worst is not None and worst[0] is State.STALLED:
            return worst
        if any(engine.moved_within(QUIET_SECONDS, now) for engine in self._engines.values()):
            return State.SATURATED, f"{reason}, while its engine makes progress"
        return State.UNKNOWN, reason
