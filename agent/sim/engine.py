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
from dataclasses import replace
from typing import cast

from agent.sim import gpu_state, ptxas
from agent.sim.faults import Fault, find
from agent.sim.gpu_state import App, Gpu, State
from agent.sim.memory import (
    CONTEXT_BYTES,
    GIB,
    GRAPH_BYTES,
    MIB,
    Pool,
    Shortage,
    StartFailure,
    batch_shortage,
    plan,
)
from agent.sim.messages import FromEngine, Ready, ToEngine
from agent.sim.options import Settings
from agent.sim.process import Channel, set_title
from agent.sim.scheduler import Scheduler, Sequence, Step
from agent.sim.texts import ERR, Voice, template

DEFAULT_NEIGHBOUR_GIB = 20
UUID = "GPU-5109e0d1-0000-4000-8000-000000000000"


class Dead(Exception):
    """The engine is over; ``code`` is its exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class EngineCore:
    """One engine process."""

    def __init__(
        self, settings: Settings, voice: Voice, channel: Channel, environ: Mapping[str, str]
    ) -> None:
        self.settings = settings
        self.voice = voice
        self.channel = channel
        self.environ = environ
        self.faults: tuple[Fault, ...] = settings.faults
        self.smi = settings.smi or environ.get("VLLM_SIM_SMI", "")
        self.needs = settings.needs(0)
        self.pool = Pool(0, 0, 0, 0.0, 0)
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

    # --- start

    def _start(self) -> None:
        """Print what a start prints and announce the pool, or print the failure and end with status 1."""
        settings = self.settings
        self.voice.say("start-engine", config=self._config())
        self.needs = settings.needs(self._others())
        try:
            planned: Pool | StartFailure = plan(self.needs)
        except StartFailure as failure:
            planned = failure
        self._load(planned)
        path = ptxas.failing(self.environ, settings.arch) if find(self.faults, "ptxas") else None
        if path is not None:
            sm = f"sm_{settings.arch}a"
            clock = time.strftime("%m%d %H:%M:%S.000000")
            self.voice.say("ptxas", ptxas=path, sm=sm, tmp="d2v9gy_u", tc=clock)
            raise Dead(1)
        if isinstance(planned, StartFailure):
            self._fail(planned)
            return
        self._ready(planned)

    def _config(self) -> str:
        """The configuration as vLLM prints it at the start and again when the engine dies."""
        settings = self.settings
        values: dict[str, object] = {
            "model": settings.model,
            "max_model_len": settings.max_model_len,
            "tp": settings.tensor_parallel_size,
            "eager": settings.eager,
            "served": settings.served[0],
            "batched": settings.max_num_batched_tokens,
        }
        return self.voice.fill(template("config", settings.version), values).rstrip()

    def _load(self, planned: Pool | StartFailure) -> None:
        """The model is loaded, unless the failure comes before that."""
        if isinstance(planned, StartFailure) and planned.kind in ("device", "load"):
            return
        slow = find(self.faults, "slow-load")
        seconds = slow.number(10) if slow else self.settings.start_seconds / 2
        shards = 4 if slow else 1
        began = time.monotonic()
        for done in range(shards + 1):
            spent = time.monotonic() - began
            left = (
                f"00:{spent * (shards - done) / done:02.0f}, {done / max(spent, 0.001):.2f}it"
                if done
                else "?, ?it"
            )
            percent = f"{100 * done // shards:3d}"
            self.voice.say(
                "start-load",
                ERR,
                percent=percent,
                done=done,
                shards=shards,
                elapsed=f"{spent:02.0f}",
                left=left,
            )
            if done < shards:
                self._pause(seconds / shards)
        self.voice.say("start-loaded", weights=f"{self.needs.weights / GIB:.2f}", load_s=f"{seconds:.6f}")

    def _pause(self, seconds: float) -> None:
        """Wait during the start; SIGTERM or a lost API server end it."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self.channel.sock, self._wake], [], [], left)
            if self.terminated or (ready and self.channel.sock in ready):
                raise Dead(0)

    def _fail(self, failure: StartFailure) -> None:
        if failure.kind == "blocks":
            self.voice.say("start-kv", pool=f"{max(0.0, self._printed_pool()):.2f}")
        if failure.kind == "load":
            self.voice.say("load-oom", error=failure.message)
        self.voice.say(f"failed-{failure.kind}", error=failure.message)
        self.voice.say(f"died-{failure.kind}", ERR, error=failure.message)
        raise Dead(1)

    def _printed_pool(self) -> float:
        """GiB of the pool that did not suffice."""
        needs = self.needs
        available = int(needs.total * needs.utilisation) - needs.weights - needs.peak
        if needs.pool_cap_tokens is not None:
            available = min(available, needs.pool_cap_tokens * needs.kv_bytes_per_token)
        return available / GIB

    def _ready(self, pool: Pool) -> None:
        settings = self.settings
        self.pool = pool
        self.scheduler.blocks = pool.blocks
        self.voice.say("start-kv", pool=f"{pool.available / GIB:.2f}")
        self.voice.say(
            "start-kv-size",
            kv_tokens=f"{pool.tokens:,}",
            max_model_len_c=f"{settings.max_model_len:,}",
            concurrency=f"{pool.concurrency:.2f}",
        )
        self._pause(settings.start_seconds / 2)
        if not settings.eager:
            self.voice.say("start-graphs")
        self.voice.say("start-done", init_s=f"{settings.start_seconds:.2f}")
        gpu_state.change(self.smi, lambda state: self._hold(state, self._footprint()))
        ready: Ready = {"blocks": pool.blocks, "tokens": pool.tokens, "concurrency": pool.concurrency}
        self.channel.send({"ready": ready})
        self._arm(self.faults)

    def _others(self) -> int:
        """Bytes of the card that other processes hold before this start."""
        known = gpu_state.read(self.smi).used(UUID, besides=os.getpid()) * MIB
        guest = find(self.faults, "oom-neighbour")
        if guest is not None and guest.arg.endswith("@start"):
            return max(known, int(guest.number(DEFAULT_NEIGHBOUR_GIB) * GIB))
        return known

    def _footprint(self) -> int:
        """Bytes that this engine holds of the card."""
        return self.needs.weights + self.pool.bytes + self.needs.peak + CONTEXT_BYTES

    def _hold(self, state: State, size: int) -> State:
        arch = self.settings.arch
        name = "NVIDIA H100 80GB HBM3" if arch == 90 else f"NVIDIA sm_{arch}"
        gpu = Gpu(0, UUID, name, self.needs.total // MIB, f"{arch // 10}.{arch % 10}")
        app = App(UUID, os.getpid(), size // MIB, "VLLM::EngineCore")
        return gpu_state.with_app(gpu_state.with_gpu(state, gpu), app)

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
                self._neighbour_leaves()
            self._arm(self.faults)

    def _neighbour_leaves(self) -> None:
        gone = App(UUID, gpu_state.NEIGHBOUR_PID, 0, "python3", guest=True)
        gpu_state.change(self.smi, lambda state: gpu_state.with_app(state, gone))
        self.needs = replace(self.needs, others=0)

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
        shortage = self._neighbour_shortage(step) or self._batch_shortage(step)
        if shortage is not None:
            self._dump(step)
            self.voice.say("oom", oom=shortage.text())
            self._die()
        hang = find(self.faults, "hang")
        if hang is not None and any(s.generated for s in self.scheduler.running):
            self._hang(step, hang)

    def _spare(self) -> int:
        """Bytes beside weights, pool and graphs: what a step's activations can take."""
        held = self.needs.weights + self.pool.bytes + CONTEXT_BYTES + self.needs.others
        return max(0, self.needs.total - held - (0 if self.needs.eager else GRAPH_BYTES))

    def _batch_shortage(self, step: Step) -> Shortage | None:
        expandable = any(
            "expandable_segments:True" in self.environ.get(name, "")
            for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        )
        for fault in self.faults:
            fragmented = fault.name == "oom-fragmented"
            if fault.name not in ("oom-above", "oom-fragmented") or (fragmented and expandable):
                continue
            amount = sum(step.scheduled.values()) if fault.in_tokens else len(step.scheduled)
            limit = int(fault.number(0))
            if amount > limit:
                return batch_shortage(self.needs.total, self._spare(), amount, limit, fragmented=fragmented)
        return None

    def _neighbour_shortage(self, step: Step) -> Shortage | None:
        """Another process has come while this one serves, and both do not fit on the card."""
        fault = find(self.faults, "oom-neighbour")
        wanted = int(fault.number(DEFAULT_NEIGHBOUR_GIB) * GIB) if fault is not None else 0
        if wanted <= self.needs.others:
            return None
        guest = App(UUID, gpu_state.NEIGHBOUR_PID, wanted // MIB, "python3", guest=True)
        gpu_state.change(self.smi, lambda state: gpu_state.with_app(state, guest))
        if self._footprint() + wanted <= self.needs.total:
            self.needs = replace(self.needs, others=wanted)
            return None
        requested = max(32 * MIB, sum(step.scheduled.values()) * 56 * 1024 // MIB * MIB)
        return Shortage(
            requested, self.needs.total, int(3.56 * MIB), int(117.7 * MIB), ((guest.pid, wanted),)
        )

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
            config=self._config(),
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
