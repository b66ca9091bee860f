"""The watch over one server: its deaths, its incidents, its repairs.

In: what the sources bring (a launcher's events, log and probes, or a URL and log files). Out: the standing,
incidents through the keeper, repairs through the remediator. The order at a death is fixed: open the incident at
once, ask the launcher to hold, read the log to the offset that the exit record names, name the cause, pursue the
repair. A death while a repair is pursued belongs to that repair, which sees it through its view.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.collect import CanaryOutcome, CanaryResult, Scrape
from agent.diagnose import Signal
from agent.model import Action, Cause, Evidence, Exit, IncidentState, NotMeasured, State, rfc3339
from agent.remediate import Remediator
from agent.watch.asking import Asking
from agent.watch.deaths import Silence, fallback_cause, first_sight, opening_delay
from agent.watch.evidence import ServerEvidence
from agent.watch.hangs import Hangs, hang_of, joined
from agent.watch.hardware import HOST_SECONDS, Hardware, with_xids
from agent.watch.judged import Judged
from agent.watch.keeper import IncidentKeeper
from agent.watch.liveness import Child, Standing
from agent.watch.lookout import Lookout, Pace
from agent.watch.orders import Orders
from agent.watch.sources import make_source
from agent.watch.startlog import StartLog
from agent.watch.tasks import OneTask, every, together
from agent.watch.unannounced import FATAL_GRACE_SECONDS, Unannounced
from agent.watch.world import ServerSpec, World

SLOW_SECONDS = 10.0
# States in which the server's own /health answers and its engine is there.
ANSWERS = (State.SERVING, State.SATURATED, State.PAUSED)
FROM_OUTSIDE = "stopped-from-outside"


class ServerWatch:
    """One server under watch. ``run`` goes on until it is cancelled."""

    def __init__(self, spec: ServerSpec, world: World) -> None:
        self.name = spec.name
        self._world = world
        self._clock = world.clock
        self.log = StartLog(world.catalogue, source=f"{spec.name} log", on_signal=self._on_signal)
        self.evidence = ServerEvidence(
            self.log, world.clock, self._on_state, lambda: world.current.value.verify.request_seconds
        )
        self.keeper = IncidentKeeper(spec.name, world.journal, world.clock, world.publish)
        self.source = make_source(spec, self, world)
        self._hardware = Hardware(spec.name, world, self.evidence, self.source.host, self.source.gpu)
        self._remediator = Remediator(
            server=spec.name,
            hands=self.source.hands,
            view=self.evidence,
            ledger=world.journal,
            guard=world.guard,
            clock=world.clock,
            on_change=self.keeper.changed,
        )
        self._asking = Asking(self.evidence, world.clock, owned=self.source.hands is not None)
        self._judged = Judged(spec, world, self.evidence)
        self._pursuit = OneTask(self._broke_off)
        self._silence = Silence(world.clock, FATAL_GRACE_SECONDS)
        self._unannounced = Unannounced(self, self._silence, world.clock)
        self._hangs = Hangs(self, self._pursuit.stop, world.clock, world.journal, spec.name)
        self._lookout = Lookout(
            self.evidence,
            self.source.look,
            world.clock,
            self._canary_pace,
            self._canary_ended,
            self._canary_failed,
        )
        self._orders = Orders(spec.name, self.source.hands, self.evidence, world.clock, world.narrator)

    async def run(self) -> None:
        """Collect and react for ever."""
        try:
            await self.source.connect()
            self._see_command()
            self._say_breaker()
            self._resume()
            bodies = {
                **self.source.bodies(),
                "scrape": lambda: every(lambda: self._world.current.value.poll_seconds, self._tick, self._clock),
                "gpu": lambda: every(self._hardware.gpu_pace, self._hardware.gpu_round, self._clock),
                "host": lambda: every(lambda: HOST_SECONDS, self._hardware.host_round, self._clock),
                "probes": lambda: every(lambda: SLOW_SECONDS, self._probe, self._clock),
            }
            named = {f"{self.name}/{name}": body for name, body in bodies.items()}
            await together(named, self._clock, self._world.narrator.line)
        finally:
            await self._pursuit.stop()
            await self._lookout.stop()
            self._hardware.close()
            await self.source.close()

    # -- what people ask ----------------------------------------------------------------------------------

    def approve(self, action_id: str, actor: str) -> Action:
        """Allow a pending action; raises AgentError."""
        return self._remediator.approve(action_id, actor)

    def deny(self, action_id: str, actor: str) -> Action:
        """Refuse a pending action; raises AgentError."""
        return self._remediator.deny(action_id, actor)

    async def freeze(self, frozen: bool) -> None:
        """Stop all acting, or allow it again; the launcher keeps it across everything. Raises LauncherError."""
        await self.source.freeze(frozen)
        await self._saw_freeze(frozen)

    @property
    def repairing(self) -> bool:
        """A cause is being named or repaired right now."""
        return self._pursuit.running

    @property
    def acting(self) -> bool:
        """A repair is under way, so nobody else should end the server. One that waits for a person is none, nor is
        the time in which a stall is confirmed: where the agent does nothing, a kubelet may.
        """
        active = self.keeper.active
        waits = active is None or active.state is IncidentState.AWAITING_APPROVAL
        return self._pursuit.running and not waits

    def status(self) -> dict[str, Any]:
        """One entry of ``/api/v1/status``."""
        standing, status = self.evidence.standing, self.evidence.status
        client, trouble = self.evidence.client, self.source.trouble
        unseen = [*([trouble] if trouble else []), *self.evidence.not_measured(), *self._hardware.not_measured()]
        return {
            "name": self.name,
            "state": standing.state.value,
            "since": rfc3339(standing.since),
            "reason": standing.reason,
            "url": client.url if client is not None else None,
            "pid": status.get("child_pid"),
            "breaker_open": self._breaker(),
            "overrides": status.get("overrides"),
            "not_measured": [msgspec.to_builtins(one) for one in unseen],
        }

    async def after_reset(self) -> None:
        """A person closed the breaker: a server that was kept down is started again. Raises LauncherError.

        Down is also a process whose engine is dead. Where the launcher's own breaker was open it starts the server
        itself; asking it a second time would end that start.
        """
        theirs = bool((await self.source.hands.status()).get("breaker_open")) if self.source.hands else False
        await self.source.reset()
        self._hangs.again()
        down = self.evidence.ended() or self.evidence.state() is State.DEAD
        if down and not theirs and not self._pursuit.running:
            await self._orders.restart("breaker reset by a person")

    # -- what the sources bring ---------------------------------------------------------------------------

    def began(self, *, at: int | None, child: Child = Child.STARTING) -> None:
        """A new start of the server's process; its output begins at ``at``."""
        self._orders.began()
        self.evidence.saw_start(child)
        self.log.begin(at)
        if self.keeper.active is None or self._pursuit.running:
            self._silence.clear()
        else:
            self._silence.begin()  # a line had opened it and no exit came between: this start tells how it goes on

    async def ended(self, record: Exit) -> None:
        """The server's process has ended. Handled once, also across restarts of the agent."""
        self.evidence.saw_exit(record)
        if self._claim(record):
            await self._react(record)

    async def _react(self, record: Exit) -> None:
        if record.asked:
            self._asked_end()
        elif record.reason == FROM_OUTSIDE and self.keeper.active is None:
            self._world.narrator.line(f"{self.name} was stopped from outside; it is started again")
            if not self._world.guard.policy.dry_run:
                await self._orders.restart("stopped from outside")
        else:
            self._died(record)
            await self._orders.hold()

    def _asked_end(self) -> None:
        """A fatal line had opened an incident, and a person ended the server before it ended by itself."""
        if self.keeper.active is not None and not self._pursuit.running:
            self._silence.clear()
            note = "the server was stopped on request before it ended by itself; nothing was done"
            self.keeper.close(self.keeper.active, IncidentState.UNRESOLVED, note)

    def _died(self, record: Exit | None) -> None:
        """An end that nobody asked for; ``record`` is None in attach mode."""
        self._silence.clear()
        exited_at = record.exited_at if record else None
        earlier = self.keeper.active
        if earlier is None:
            fault, summary, evidence = first_sight(record, self.log.signals)
            self.keeper.open(fault, summary, evidence, exited_at=exited_at)
        if record is not None and (earlier is None or earlier.exited_at is None):
            self._world.metrics.time_to_open(opening_delay(record, self.keeper.active))
        self._pursuit.start(lambda: self._pursue(exited_at))

    def missed(self, record: Exit, cause: Cause | None) -> None:
        """An end while no agent watched; the launcher has started the server again, and that start is proven."""
        if record.asked or record.reason == FROM_OUTSIDE or not self._claim(record) or self.keeper.active is not None:
            return
        fault, summary, evidence = first_sight(record, ())
        incident = self.keeper.open(fault, summary, evidence, exited_at=record.exited_at)
        named = self.keeper.name_cause(incident, cause or fallback_cause(record), exited_at=record.exited_at)
        self._pursuit.start(lambda: self._remediator.resume(named, self.source.situation))

    def _claim(self, record: Exit) -> bool:
        key = f"{self.name}/exit/{record.command_hash}/{record.seq}/{record.started_at}"
        return self._world.journal.claim(key)

    def _on_signal(self, signal: Signal) -> None:
        self.evidence.saw_log()
        if not signal.fatal or self.evidence.state() in (State.STOPPED, State.DRAINING):
            return
        if self.keeper.active is None and not self.evidence.ended():
            seen = Evidence(source="log", where=signal.where, text=signal.text)
            self.open_early(signal.fault, f"the log shows {signal.fault}; reading on", seen)

    def open_early(self, fault: str, summary: str, seen: Evidence) -> None:
        """Before the process ends; the exit, or its absence, tells how it goes on."""
        self.keeper.open(fault, summary, (seen,), exited_at=None)
        self._silence.begin()

    def _on_state(self, standing: Standing) -> None:
        self._world.narrator.state(self.name, standing)
        self._world.metrics.set_state(self.name, standing.state)
        self._judged.see_engines()
        if self.source.hands is None:
            self._attached_state(standing)

    def _attached_state(self, standing: Standing) -> None:
        """Nothing wraps the server: its state is all there is to see of a death and of a return."""
        if standing.state is State.DEAD:
            self.gone()
        elif standing.state in ANSWERS:
            self.evidence.saw_return()
            if self.keeper.active is not None and not self._pursuit.running:
                self._silence.clear()
                self.keeper.close(self.keeper.active, IncidentState.RESOLVED, "the server came back by itself")

    def gone(self) -> None:
        """Attach mode: it answers no more. Its log may say that somebody asked for that."""
        self.evidence.saw_gone()
        if self.log.session.shutdown_requested:
            self._world.narrator.line(f"{self.name} was shut down on request, as its log says")
            self._asked_end()
            self.log.begin()
        else:
            self._died(None)

    # -- rounds -------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        client = self.evidence.client
        if client is not None and not self._down():
            scrape = await self._asking.round(client)
            if isinstance(scrape, Scrape):
                self._world.metrics.scraped(self.name, scrape.seconds)
            self._judged.scraped(scrape)
            await self._lookout.round()
        else:
            self._judged.scraped(NotMeasured(check="vllm metrics", reason="nothing listens"))
        await self._saw_freeze(self.source.frozen())
        self._unannounced.look()
        await self._hangs.look()
        if self.evidence.ended() and self._remediator.stay_down:
            await self._orders.keep_holding()

    async def _saw_freeze(self, frozen: bool) -> None:
        """A thaw takes up again what the freeze had left undone."""
        thawed = self.evidence.frozen() and not frozen
        self.evidence.saw_freeze(frozen)
        if thawed:
            self._unannounced.thawed()
            self._hangs.again()
        record = self.evidence.exit
        if thawed and record is not None and self.evidence.ended() and not self._pursuit.running:
            await self._react(record)

    async def _probe(self) -> None:
        await self.source.probe()
        self._see_command()
        self._world.metrics.set_breaker(self.name, self._breaker() is not None)
        self._world.metrics.set_override(self.name, bool(self.evidence.status.get("overrides")))

    def _breaker(self) -> str | None:
        """Why nothing is started any more: the agent's own breaker, or the launcher's."""
        theirs = "the launcher's own starts failed too often" if self.evidence.status.get("breaker_open") else None
        return self._world.guard.breaker_open(self.name) or theirs

    def _see_command(self) -> None:
        """Who starts the server with another command has acted as a person: the old command's breaker is closed."""
        command = str(self.evidence.status.get("command_sha256") or "")
        if not command:
            return
        key = f"watch/command/{self.name}"
        known = self._world.journal.kv_get(key)
        if known == command:
            return
        self._world.journal.kv_set(key, command)
        if known is not None and self._world.guard.reset_breaker(self.name):
            self._world.journal.append_event("breaker-reset", self.name, {"actor": "agent", "reason": "new command"})
            self._world.narrator.line(f"{self.name}: its command has changed: the circuit breaker is closed")

    def _say_breaker(self) -> None:
        """A breaker outlives the agent: whoever starts it again must hear that nothing is repaired."""
        reason = self._world.guard.breaker_open(self.name)
        if reason is not None:
            self._world.narrator.line(
                f"{self.name}: the circuit breaker is open ({reason}): nothing is repaired until a person says "
                f"`agent breaker reset {self.name}`"
            )

    def _down(self) -> bool:
        """Nothing listens: the launcher said that the process has ended."""
        return (
            self.source.hands is not None
            and self.evidence.state() in (State.DEAD, State.STOPPED)
            and self.evidence.exit is not None
            and self.evidence.ended()
        )

    # -- acting -------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Go on with what a previous life of the agent left open."""
        incident = self.keeper.restore()
        if incident is not None:
            self._world.narrator.line(f"going on with incident {incident.id} of a previous run")
            if not self._hangs.takes_up(incident) or incident.state is IncidentState.AWAITING_APPROVAL:
                self._pursuit.start(lambda: self._remediator.resume(incident, self.source.situation))

    def begin_repair(self) -> None:
        """Pursue the open incident of a server whose exit nobody told."""
        self._pursuit.start(lambda: self._pursue(None))

    async def _pursue(self, exited_at: str | None) -> None:
        """Name the cause, then repair it."""
        record = self.evidence.exit if self.evidence.ended() else None
        hang = hang_of(self.evidence) if self.evidence.state() is State.STALLED else None
        cause = joined(await self.evidence.fresh_cause(), hang) or fallback_cause(record)
        cause = with_xids(cause, self.evidence.xids, self._clock.now())
        if self.source.hands is None and self.evidence.ended():
            self.log.begin()  # what the files show from here on is of the next start
        incident = self.keeper.active
        if incident is None:
            return
        incident = self.keeper.name_cause(incident, cause, exited_at=exited_at)
        await self._remediator.pursue(incident, cause, self.source.situation)

    def _canary_pace(self) -> Pace:
        wanted = self._world.current.value.canary
        return Pace(
            enabled=wanted.enabled,
            every_seconds=wanted.every_seconds,
            timeout_seconds=wanted.timeout_seconds,
        )

    def _canary_ended(self, result: CanaryResult) -> None:
        answered = result.outcome is CanaryOutcome.ANSWERED
        seconds = result.ended_at - result.sent_at if answered else None
        self._world.metrics.canary(self.name, result.engine, result.outcome.value, seconds)

    def _canary_failed(self, error: Exception) -> None:
        self._world.narrator.line(f"{self.name}: a canary broke off: {type(error).__name__}: {error}")

    def _broke_off(self, error: Exception) -> None:
        """A fault of the agent's own must not leave an incident open in silence."""
        self._world.narrator.line(f"{self.name}: the repair broke off: {type(error).__name__}: {error}")
        if self.keeper.active is not None:
            note = f"the agent's own fault, please report it: {type(error).__name__}: {error}"
            self.keeper.close(self.keeper.active, IncidentState.UNRESOLVED, note)
