"""The launcher's heart: start, wait, judge the exit, wait for a watcher's word, start again or leave.

In: requests (stop, restart, drain, hold, reset) from the socket and from signals; the exit of the server.
Out: events, exit records, the launcher's own exit code. Never decides *what* is wrong: that is the watcher's
work; without one it restarts by a bounded policy and gives up loudly.

One loop owns the server's life; requests only set an intent and ring the bell, so two requests can never
start two servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace

from agent.errors import LauncherError
from agent.launch import health, overrides, policy
from agent.launch.bell import Bell
from agent.launch.judge import Facts, Opinion
from agent.launch.life import Life
from agent.launch.parts import Hold, Intent, Parts
from agent.launch.policy import Ending, ExitKind, Verdict
from agent.launch.record import exit_record
from agent.launch.rundir import Counters, reject

SERVED_SECONDS = 60.0
FROZEN_POLL_SECONDS = 1.0
DRAIN_POLL_SECONDS = 0.5
HOLD_MAX_SECONDS = 60.0


class Supervisor:
    """Owns the server's life."""

    def __init__(self, parts: Parts, counters: Counters) -> None:
        self._p = parts
        self.counters = counters
        self.life: Life | None = None
        self.applied: overrides.Overrides | None = None
        self.overrides_notice: str | None = None
        self.hold_state: Hold | None = None
        self.opinion: Opinion | None = None
        self.last_exit: Mapping[str, object] | None = parts.run_dir.last_exit()
        self.restarts = 0
        self.listeners = 0
        self.start_log_offset: int | None = None
        self._intent: Intent | None = None
        self._in_a_row = 0
        self._pending = False
        self._deciding = False
        self._usage_with_flags = False
        self._usage_alone = False
        self._bell = Bell()
        self._tasks: set[asyncio.Task[object]] = set()
        self._kill_timer: asyncio.TimerHandle | None = None

    # -- what others ask ------------------------------------------------------------------------------

    def ask_stop(self, word: str, *, timeout: float | None = None) -> None:
        """Stop the server and leave with 0. A second request ends the server at once."""
        if self._intent is not None and self._intent.leave and word.startswith("signal"):
            self._kill_now()
            return
        self._request(Intent(word, leave=True), timeout)

    def ask_restart(self, word: str, *, verify_memory: bool = True) -> None:
        """Stop the server if it runs, then start it. Raises LauncherError: frozen, breaker-open, stopping."""
        self.refuse_if_frozen()
        if self.counters.breaker_open:
            raise LauncherError(
                "the breaker is open: five starts failed in a row",
                code="breaker-open",
                remedy="find the cause, then close it with `agent breaker reset`",
            )
        if self._intent is not None and self._intent.leave:
            raise LauncherError("the launcher is stopping", code="stopping", remedy="start the launcher again")
        self._request(Intent(word, leave=False, verify_memory=verify_memory), None)

    def refuse_if_frozen(self) -> None:
        """Raises LauncherError with code ``frozen``."""
        if self._p.run_dir.frozen:
            raise LauncherError("all acting is frozen", code="frozen", remedy="end it with `agent thaw`")

    async def drain(self, timeout: float) -> None:
        """Readiness off, wait until no request is in flight (at most ``timeout`` seconds), stop, leave
        with 0.
        """
        if self._intent is None or not self._intent.leave:
            self._intent = Intent("drain", leave=True)
            self._p.events.add("draining", seconds=timeout)
        self._bell.ring()
        deadline = self._p.clock.monotonic() + timeout
        idle = 0
        while self.life is not None and self.life.alive and idle < 2 and self._p.clock.monotonic() < deadline:
            count = await health.requests_in_flight(self.life.address)
            if count is None:
                break  # the server does not say (statistics off): its own --shutdown-timeout decides
            idle = idle + 1 if count == 0 else 0
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        self._p.events.add("drained", waited_until_idle=idle >= 2)
        self._terminate(None)

    def start_drain(self, timeout: float) -> None:
        """Begin a drain in the background."""
        self._keep(asyncio.ensure_future(self.drain(timeout)))

    def hold(self, exit_seq: int, seconds: float) -> Hold:
        """The watcher decides about the newest exit. Raises LauncherError where that is not what is
        pending.
        """
        if not self._deciding:
            raise LauncherError(
                "no exit waits for a decision: the server runs, or its start is under way",
                code="nothing-to-hold",
                remedy="hold right after the exit event",
            )
        if exit_seq != self.counters.exit_seq:
            raise LauncherError(
                f"exit {exit_seq} is not the newest, {self.counters.exit_seq} is",
                code="nothing-to-hold",
                remedy="hold the newest exit",
            )
        if self._usage_alone:
            raise LauncherError(
                "the server refused its own command line: the launcher ends with its exit code",
                code="nothing-to-hold",
                remedy="correct the command and start it again",
            )
        self.hold_state = Hold(exit_seq, self._p.clock.monotonic() + min(seconds, HOLD_MAX_SECONDS))
        self._bell.ring()
        return self.hold_state

    def reset(self) -> None:
        """Close the breaker, forget the failures, start if nothing runs."""
        self._in_a_row = 0
        was_open = self.counters.breaker_open
        self._save(failures=(), breaker_open=False)
        if was_open:
            self._p.events.add("breaker", open=False)
        if was_open and self._intent is None and not (self.life is not None and self.life.alive):
            self._intent = Intent("reset", leave=False)
        self._bell.ring()

    def thawed(self) -> None:
        """Go on with what the freeze stopped."""
        self._bell.ring()

    def give_opinion(self, state: str, reason: str, acting: bool) -> None:
        """The watcher's verdict on the server that runs now."""
        self.opinion = Opinion(state, reason, acting, self._p.clock.monotonic())

    def facts(self) -> Facts:
        """What the probes are judged by."""
        alive = self.life is not None and self.life.alive
        hold = self.hold_state
        now = self._p.clock.monotonic()
        return Facts(
            now=now,
            started=self.life.started.monotonic if alive and self.life else None,
            ready=self.life is not None and self.life.ready is not None,
            stopping=self._intent.word if self._intent is not None and self._intent.leave else None,
            held=hold is not None and hold.until > now,
            restarting=self._pending,
            breaker_open=self.counters.breaker_open,
            frozen=self._p.run_dir.frozen,
            opinion=self.opinion,
        )

    @property
    def watcher_present(self) -> bool:
        """Whether a brain is there: one listens to the events now, or the launcher owns one."""
        return self.listeners > 0 or bool(self._p.settings.watcher)

    def notice(self, text: str) -> None:
        """Something a person should know; an event and a line on stderr."""
        self._p.say(text)
        self._p.events.add("notice", text=text)

    # -- the life of the server ------------------------------------------------------------------------

    async def run(self) -> int:
        """Until asked to stop, or until it makes no sense to go on. Returns the launcher's exit code."""
        try:
            if self.counters.breaker_open:
                self.notice("the breaker is open from before: nothing is started until a person resets it")
                leave = await self._wait_for_word(self._p.clock.monotonic(), ExitKind.FAILURE)
                if leave is not None:
                    return leave
            first = True
            while True:
                leave = await self._one_life(first)
                if leave is not None:
                    return leave
                first = False
        finally:
            await self._p.cleanup.finish()
            for task in self._tasks:
                task.cancel()
            if self.life is not None:
                self.life.close()

    async def _one_life(self, first: bool) -> int | None:
        """None = start again."""
        verify = self._intent.verify_memory if self._intent is not None else True
        if not first:
            await self._p.cleanup.finish()
            if verify:
                await self._wait_for_memory()
        await self._load_overrides()
        if self._intent is not None and self._intent.leave:
            return 0
        # Nothing is awaited from here to the start, so a stop cannot fall in between.
        self._intent = None
        self._start(first)
        assert self.life is not None
        exit_code = await self.life.ended
        return await self._after_exit(exit_code)

    async def _wait_for_memory(self) -> None:
        waiting = asyncio.ensure_future(self._p.cleanup.wait_for_gpu_memory(self._p.settings.gpu_wait))
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=0.2)
            if self._intent is not None and self._intent.leave:
                waiting.cancel()
                return
        note = waiting.result()
        if note:
            self.notice(note)

    def _start(self, first: bool) -> None:
        p = self._p
        argv, env = list(p.settings.argv), dict(p.settings.env)
        if self.applied is not None:
            argv, env = self.applied.apply_argv(argv), self.applied.apply_env(env)
        env.update(VLLM_AGENT_RUN_DIR=str(p.run_dir.path), AGENT_LAUNCH_ID=p.settings.launch_id)
        if self.life is not None:
            self.life.close()
        self._pending = False
        self.hold_state = None
        self.start_log_offset = p.log.mark()
        self.life = Life(argv, env, p.settings.address, reaper=p.reaper, guard=p.guard, clock=p.clock, sink=self._take)
        p.cleanup.watch(self.life.pid)
        self.restarts += 0 if first else 1
        self._save(starts=self.counters.starts + 1)
        p.events.add(
            "started", pid=self.life.pid, restarts=self.restarts, overridden=self.applied is not None,
            log_offset=self.start_log_offset,
        )  # fmt: skip
        self._keep(asyncio.ensure_future(self._watch_ready(self.life)))
        if first:
            self._keep(asyncio.ensure_future(self._look_around()))

    def _take(self, data: bytes) -> None:
        self._p.log.append(data)
        self._p.tee.write(data)

    async def _look_around(self) -> None:
        """Baseline of GPU memory and the versions, beside the first start so that it delays nothing."""
        await self._p.cleanup.measure_baseline()
        await self._p.surroundings.refresh()

    async def _load_overrides(self) -> None:
        p = self._p
        if not p.run_dir.overrides_path.exists():
            self.applied = None
            return
        await p.surroundings.refresh()
        key = p.surroundings.key()
        self.applied, notice = overrides.load(p.run_dir.overrides_path, key, p.settings.argv, p.settings.env)
        if notice:
            self._overrides_rejected(notice)

    def _overrides_rejected(self, notice: str) -> None:
        self.overrides_notice = notice
        self._p.say(notice)
        self._p.events.add("overrides-rejected", text=notice)

    async def _watch_ready(self, life: Life) -> None:
        if not await life.wait_ready() or life.ready is None:
            return
        self._save(failures=())
        seconds = life.ready.monotonic - life.started.monotonic
        self._p.events.add("ready", pid=life.pid, seconds=round(seconds, 3))

    async def _after_exit(self, exit_code: int) -> int | None:
        life = self.life
        assert life is not None
        life.drain_pipe()
        self._cancel_kill()
        ending = Ending.from_wait(exit_code, self._intent.word if self._intent else None, life.told_to_stop)
        kind = policy.classify(ending)
        self._p.say(f"the server ended: {policy.describe(ending)}")
        flagged = self.applied is not None and self.applied.changes_flags
        self._usage_with_flags = kind is ExitKind.USAGE and flagged
        self._usage_alone = kind is ExitKind.USAGE and not flagged
        self._count(kind, life)
        self._record(life, ending)
        self._p.cleanup.begin(asked=kind is ExitKind.ASKED, patience=self._p.settings.stop_timeout)
        assert life.ended_at is not None
        return await self._wait_for_word(life.ended_at.monotonic, kind)

    def _count(self, kind: ExitKind, life: Life) -> None:
        assert life.ended_at is not None
        if life.ready and life.ended_at.monotonic - life.ready.monotonic >= SERVED_SECONDS:
            self._in_a_row = 0
        if kind in (ExitKind.FAILURE, ExitKind.USAGE):
            self._in_a_row += 1
            now = self._p.clock.wall()
            self.counters = replace(self.counters, failures=(*policy.recent(self.counters.failures, now), now))

    def _record(self, life: Life, ending: Ending) -> None:
        """The exit record: to the listeners first, then to disk."""
        record = exit_record(
            self.counters.exit_seq + 1,
            life,
            ending,
            command_hash=self._p.surroundings.command_sha256,
            oom_kills=self._p.cleanup.oom_kills(),
            log_offset=self._p.log.end,
        )
        self.last_exit = record
        self.counters = replace(self.counters, exit_seq=self.counters.exit_seq + 1)
        self._p.events.add("exit", exit=record, asked=ending.asked is not None)
        self._p.run_dir.append_exit(record)

    async def _wait_for_word(self, exited: float, kind: ExitKind) -> int | None:
        """Wait for the watcher, the backoff, a thaw or a reset. None = start, a number = leave with it."""
        self._pending = self._deciding = True
        try:
            return await self._decided(exited + policy.own_delay(kind, self._in_a_row), kind)
        finally:
            self._deciding = False

    async def _decided(self, deadline: float, kind: ExitKind) -> int | None:
        while True:
            if self._intent is not None:
                return 0 if self._intent.leave else None
            now = self._p.clock.monotonic()
            wait = self._still_to_wait(deadline, now)
            if wait is None:
                outcome = self._decide(kind)
                if outcome is not Verdict.BREAKER:
                    return self._follow(outcome)
                continue
            await self._bell.wait(wait)

    def _still_to_wait(self, deadline: float, now: float) -> float | None:
        """Seconds until it is worth looking again; None when an own decision is due."""
        if self.counters.breaker_open or self._p.run_dir.frozen:
            return FROZEN_POLL_SECONDS
        hold = self.hold_state
        until = max(deadline, hold.until if hold is not None else 0.0)
        return until - now if until > now else None

    def _decide(self, kind: ExitKind) -> Verdict:
        failures = len(policy.recent(self.counters.failures, self._p.clock.wall()))
        verdict = policy.decide(kind, failures, watcher=self.watcher_present, flags_overridden=self._usage_with_flags)
        if verdict is Verdict.BREAKER:
            self._save(breaker_open=True)
            self._p.events.add("breaker", open=True, failures=failures)
        return verdict

    def _follow(self, verdict: Verdict) -> int | None:
        if verdict is Verdict.LEAVE_USAGE:
            self._p.events.add("gave-up", reason="usage error: the command line itself is wrong")
            return policy.USAGE_ERROR
        if verdict is Verdict.GIVE_UP:
            self._p.events.add("gave-up", reason="five failed starts in 15 minutes without progress")
            return policy.EXIT_GAVE_UP
        if self._usage_with_flags:
            kept = reject(self._p.run_dir.overrides_path)
            self._overrides_rejected(f"overrides dropped: vLLM refused its flags (exit 2); kept as {kept}")
        self._p.events.add("restarting", by="launcher", in_a_row=self._in_a_row)
        return None

    # -- small hands ----------------------------------------------------------------------------------

    def _request(self, intent: Intent, timeout: float | None) -> None:
        self._intent = intent
        self._p.events.add("stopping" if intent.leave else "restarting", by=intent.word)
        self._terminate(timeout)
        self._bell.ring()

    def _terminate(self, timeout: float | None) -> None:
        """SIGTERM to the server; SIGKILL to its group when it has not ended in time."""
        if self.life is None or not self.life.alive:
            return
        self.life.send(signal.SIGTERM)
        if self._kill_timer is None:
            seconds = self._p.settings.stop_timeout if timeout is None else timeout
            self._kill_timer = asyncio.get_running_loop().call_later(seconds, self._kill_now)

    def _kill_now(self) -> None:
        if self.life is not None and self.life.alive:
            self.notice("the server did not end in time: its process group gets SIGKILL")
            self.life.kill_group()
        self._p.cleanup.hurry()

    def _cancel_kill(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None

    def save_event_seq(self, seq: int) -> None:
        """Events number themselves; the number survives the launcher."""
        self._save(event_seq=seq)

    def _save(self, **changes: object) -> None:
        self.counters = replace(self.counters, **changes)  # type: ignore[arg-type]
        self._p.run_dir.write_counters(self.counters)

    def _keep(self, task: asyncio.Future[None]) -> None:
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end_orphans(self) -> list[int]:
        """End leftovers of earlier lives now; the pids that got SIGKILL."""
        self.refuse_if_frozen()
        alive = self.life.pid if self.life is not None and self.life.alive else None
        pids = [process.pid for process in self._p.cleanup.leftovers(alive)]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return pids
