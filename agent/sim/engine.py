"""EngineCore of the stand-in: starts (or fails to), steps the scheduler, and dies as a real engine does.

In come requests from the API server over the channel and signals; out go one message a step (who got a token,
who is done, the scheduler's gauges) and the log lines that vLLM's EngineCore prints. It sleeps in `select`
between steps and uses no CPU while idle. Faults are looked up at the moment they could strike; none of them
counts anything.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from typing import cast

from agent.sim.card import Card
from agent.sim.faults import Fault, find
from agent.sim.messages import FromEngine, Ready, ToEngine
from agent.sim.options import Settings
from agent.sim.process import Channel, set_title
from agent.sim.scheduler import Scheduler, Sequence, Step
from agent.sim.startup import Dead, Startup, config_text
from agent.sim.texts import Voice


class EngineCore:
    """One engine process."""

    def __init__(self, settings: Settings, voice: Voice, channel: Channel, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.voice = voice
        self.channel = channel
        self.environ = environ
        self.faults: tuple[Fault, ...] = settings.faults
        smi = settings.smi or environ.get("VLLM_SIM_SMI", "")
        self.card = Card(smi, settings.arch, settings.needs(0), environ)
        self.terminated = False
        self.die_at: float | None = None
        self.drain_until: float | None = None
        self._wake, wake = socket.socketpair()
        for end in (self._wake, wake):
            end.setblocking(False)
        self._wake_writer = wake
        self.scheduler = Scheduler(
            max_num_seqs=settings.max_num_seqs,
            max_tokens=settings.max_num_batched_tokens,
            blocks=0,
            block_size=settings.block_size,
            max_len=settings.max_model_len,
            prefix_caching=settings.prefix_caching,
        )

    def run(self) -> int:
        """The whole life; returns the exit status."""
        set_title("VLLM::EngineCore")
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._start()
            while True:
                self._turn()
        except Dead as end:
            return end.code
        except (BrokenPipeError, ConnectionResetError):
            time.sleep(self.settings.orphan_seconds)
            return 0

    def _on_term(self, _number: int, _frame: object) -> None:
        self.terminated = True

    def _start(self) -> None:
        """Start, announce the pool and arm what runs on a timer."""
        pool = Startup(self.settings, self.voice, self.card, self.environ, self._pause).run()
        self.scheduler.blocks = pool.blocks
        ready: Ready = {"blocks": pool.blocks, "tokens": pool.tokens, "concurrency": pool.concurrency}
        self.channel.send({"ready": ready})
        self._arm(self.faults)

    def _pause(self, seconds: float) -> None:
        """Wait during the start; SIGTERM or a lost API server end it."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self.channel.sock, self._wake], [], [], left)
            if self.terminated or (ready and self.channel.sock in ready):
                raise Dead(0)

    # --- running

    def _turn(self) -> None:
        """Wait for what comes next and, if there is work, make one step."""
        self._check_term()
        if not self.scheduler.has_work:
            if self.drain_until is not None:
                self._finish_shutdown()
            self._read(self._until_death())
            return
        step = self.scheduler.plan()
        self._strike(step)
        slow = find(self.faults, "slow-answers")
        self._wait(self.settings.step_seconds + (slow.number(0.5) if slow else 0.0))
        self.scheduler.finish(step)
        self._report(step)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(min(left, self._until_death() or left))
            self._check_term()

    def _until_death(self) -> float | None:
        """Seconds until the exit0 timer strikes; the strike itself when it is due."""
        if self.die_at is None:
            return None
        left = self.die_at - time.monotonic()
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return max(left, 0.001)

    def _read(self, timeout: float | None) -> None:
        """Take in messages; an ended channel means that the API server is gone."""
        ready, _, _ = select.select([self.channel.sock, self._wake], [], [], timeout)
        if self._wake in ready:
            self._wake.recv(4096)
        if self.channel.sock in ready:
            messages = self.channel.receive()
            if messages is None:
                raise BrokenPipeError
            for message in messages:
                self._take(cast(ToEngine, message))

    def _take(self, message: ToEngine) -> None:
        if "add" in message:
            fault = find(self.faults, "exit0")
            if fault is not None and not fault.arg:
                os.kill(os.getpid(), signal.SIGKILL)
            add = message["add"]
            sequence = Sequence(add["id"], add["prompt"], add["max_tokens"], add["hashes"], name=add["name"])
            self.scheduler.add(sequence)
        elif "abort" in message:
            self.scheduler.abort(set(message["abort"]))
        elif "faults" in message:
            had_neighbour = find(self.faults, "oom-neighbour") is not None
            self.faults = tuple(Fault(name, arg) for name, arg in message["faults"])
            if had_neighbour and find(self.faults, "oom-neighbour") is None:
                self.card.neighbour_leaves()
            self._arm(self.faults)

    def _arm(self, faults: tuple[Fault, ...]) -> None:
        """Start or stop the timer of exit0."""
        fault = find(faults, "exit0")
        if fault is None or not fault.arg:
            self.die_at = None
        elif self.die_at is None:
            self.die_at = time.monotonic() + fault.number(0)

    def _report(self, step: Step) -> None:
        """Tell the API server about a computed step."""
        scheduler = self.scheduler
        news: FromEngine = {"new": step.new, "done": step.finished, "started": step.started}
        news["gauges"] = {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "usage": scheduler.usage,
            "prompt": step.prompt_tokens,
            "cached": step.cached_tokens,
            "queried": step.queried_tokens,
            "preempted": step.preempted,
        }
        self.channel.send(news)

    # --- faults

    def _strike(self, step: Step) -> None:
        """Die or hang in this step if a fault says so."""
        shortage = self.card.shortage(step, self.faults)
        if shortage is not None:
            self._dump(step)
            self.voice.say("oom", oom=shortage.text())
            self._die()
        hang = find(self.faults, "hang")
        if hang is not None and any(s.generated for s in self.scheduler.running):
            self._hang(step, hang)

    def _hang(self, step: Step, fault: Fault) -> None:
        """Stop stepping. Messages are still taken in, as a real engine's input thread does; nothing is
        computed.
        """
        began = time.monotonic()
        notice = began + self.settings.hang_notice
        limit = began + float(self.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300"))
        end = began + fault.number(float("inf"))
        while find(self.faults, "hang") is not None:
            now = time.monotonic()
            if now >= end:
                self.faults = tuple(f for f in self.faults if f.name != "hang")
                return
            if now >= limit:
                self._dump(step)
                self.voice.say("hang-timeout")
                self._die()
            if now >= notice:
                self.voice.say("hang-notice", seconds=f"{self.settings.hang_notice:g}")
                notice += max(self.settings.hang_notice, 0.05)
            self._read(max(0.0, min(end, limit, notice) - now))

    def _dump(self, step: Step) -> None:
        """What vLLM prints of the batch before it dies."""
        sequences = {s.id: s for s in self.scheduler.running}
        scheduled = {sequences[i].name: n for i, n in step.scheduled.items() if i in sequences}
        chosen = [sequences[i] for i in step.scheduled if i in sequences]
        self.voice.say(
            "dump",
            config=config_text(self.settings, self.voice),
            req_ids=[s.name for s in chosen],
            nones=[None] * len(chosen),
            computed=[s.computed for s in chosen],
            outputs=[s.generated for s in chosen],
            scheduled="{" + ", ".join(f"{name}: {n}" for name, n in scheduled.items()) + "}",
            total=sum(scheduled.values()),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            usage=self.scheduler.usage,
        )

    def _die(self) -> None:
        self.channel.send({"dead": True})
        raise Dead(1)

    # --- shutdown

    def _check_term(self) -> None:
        """SIGTERM: abort at once, or with --shutdown-timeout let the requests finish first."""
        now = time.monotonic()
        if self.drain_until is not None and now >= self.drain_until:
            self._finish_shutdown()
        if not self.terminated:
            return
        self.terminated = False
        if self.drain_until is not None:
            return
        seconds = self.settings.shutdown_timeout
        self.voice.say("term-engine-trigger", mode="drain" if seconds else "abort", timeout=f"{seconds:g}")
        self.drain_until = now + seconds
        count = len(self.scheduler.running) + len(self.scheduler.waiting)
        if seconds and count:
            self.voice.say("term-engine-drain", count=count, timeout=f"{seconds:g}")
        else:
            self._finish_shutdown()

    def _finish_shutdown(self) -> None:
        left = (*self.scheduler.running, *self.scheduler.waiting)
        done = [(s.id, "abort", s.preemptions, s.cached) for s in left]
        self.channel.send({"new": [], "done": done, "started": []})
        self.voice.say("term-engine-end")
        raise Dead(0)
