"""The fixed menu: what a watcher or a person may ask of the launcher.

In: checked arguments. Out: a JSON object, or a LauncherError. Never runs a command that it was sent: every
verb is a function below.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping

from agent import __version__
from agent.errors import LauncherError
from agent.launch import health, overrides, policy, ptxas
from agent.launch.args import Reader
from agent.launch.children import Tools
from agent.launch.clock import rfc3339
from agent.launch.command import can_append_flags
from agent.launch.gpu import visible
from agent.launch.gpuprobe import GpuProber
from agent.launch.hostfacts import HostProbe, Subject
from agent.launch.judge import VERDICT_STATES, judge
from agent.launch.parts import Parts
from agent.launch.procfs import Process, cgroup_memory, command_line, shared_memory
from agent.launch.redaction import redact_argv, redact_env
from agent.launch.rundir import write_json
from agent.launch.space import places
from agent.launch.supervisor import HOLD_MAX_SECONDS, Supervisor
from agent.launch.wire import VERSION, Args, Call, Stream

LOG_CHUNK_BYTES = 32 * 1024
PROCESSES_SHOWN = 100
DRAIN_MAX_SECONDS = 3600.0


Document = dict[str, object]


class Verbs:
    """All verbs of one launcher."""

    def __init__(self, parts: Parts, supervisor: Supervisor, tools: Tools) -> None:
        self._p = parts
        self._s = supervisor
        self._tools = tools
        self._gpus = GpuProber(parts.reaper, parts.surroundings, parts.cleanup, parts.events, self._environment)
        self._host = HostProbe(parts.clock.monotonic)
        self._state = ""
        self._since = parts.clock.wall()

    @property
    def calls(self) -> Mapping[str, Call]:
        return {
            "status": self.status, "restart": self.restart, "stop": self.stop, "drain": self.drain,
            "set-overrides": self.set_overrides, "clear-overrides": self.clear_overrides, "probe": self.probe,
            "end-orphans": self.end_orphans, "verdict": self.verdict, "hold": self.hold,
            "freeze": self.freeze,            "thaw": self.thaw, "reset": self.reset,
        }  # fmt: skip

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {"events": self.events, "log": self.log}

    def state_since(self, state: str) -> str:
        """When ``state`` was first seen, RFC 3339; remembers it."""
        if state != self._state:
            self._state, self._since = state, self._p.clock.wall()
        return rfc3339(self._since)

    async def status(self, args: Args) -> Document:
        """Everything about the launcher and its server at once."""
        Reader(args)
        p, s = self._p, self._s
        life, around = s.life, p.surroundings
        alive = life is not None and life.alive
        answer = judge(s.facts())
        hold = s.hold_state
        return {
            "v": 1,
            "launcher_version": __version__,
            "protocol": VERSION,
            "state": answer.state,
            "reason": answer.reason,
            "since": self.state_since(answer.state),
            "child_pid": life.pid if alive and life else None,
            "started_at": rfc3339(life.started.wall) if life else None,
            "ready_at": rfc3339(life.ready.wall) if life and life.ready else None,
            "restarts": s.restarts,
            "argv": redact_argv(life.argv if life else p.settings.argv),
            "operator_argv": redact_argv(p.settings.argv),
            "effective_argv": redact_argv(life.argv if life else p.settings.argv),
            "env_overrides": dict(s.applied.env) if s.applied else {},
            "overrides": self._on_disk(),
            "overrides_notice": s.overrides_notice,
            "url": p.settings.address.url,
            "health_path": health.HEALTH_PATH,
            "command_sha256": around.command_sha256,
            "vllm_version": around.stack.vllm,
            "triton_version": around.stack.triton,
            "torch_version": around.stack.torch,
            "versions_reason": around.stack.reason,
            "gpus": list(around.gpus or ()),
            "failures_in_window": len(policy.recent(s.counters.failures, p.clock.wall())),
            "breaker_open": s.counters.breaker_open,
            "frozen": p.run_dir.frozen,
            "hold": {"exit_seq": hold.exit_seq, "until_monotonic": hold.until} if hold else None,
            "last_exit": dict(s.last_exit) if s.last_exit else None,
            "log_offset": p.log.end,
            "log_start": p.log.start,
            "start_log_offset": s.start_log_offset,
            "dropped_bytes": p.tee.dropped_bytes,
            "tee": {
                "written_bytes": p.tee.written_bytes,
                "dropped_bytes": p.tee.dropped_bytes,
                "stalled": p.tee.stalled,
            },
            "can_append_flags": can_append_flags(p.settings.argv),
            "event_seq": p.events.seq,
            "exit_seq": s.counters.exit_seq,
        }

    def _on_disk(self) -> Document | None:
        """The set that the next start will use; looking at it changes nothing."""
        p = self._p
        found, _ = overrides.peek(p.run_dir.overrides_path, p.surroundings.key(), p.settings.argv, p.settings.env)
        return found.to_json() if found else None

    async def restart(self, args: Args) -> Document:
        """``{reason, incident?, verify_memory?}``: stop the server if it runs, start it again."""
        reader = Reader(args, "reason", "incident", "verify_memory")
        reason = reader.text("reason", "restart")
        self._s.ask_restart(f"restart ({reason})", verify_memory=reader.switch("verify_memory", True))
        return {"accepted": True}

    async def stop(self, args: Args) -> Document:
        """``{reason?, timeout?}``: stop the server; the launcher then leaves with 0."""
        reader = Reader(args, "reason", "timeout")
        timeout = reader.seconds("timeout", self._p.settings.stop_timeout, DRAIN_MAX_SECONDS)
        self._s.ask_stop("stop", timeout=timeout)
        return {"accepted": True}

    async def drain(self, args: Args) -> Document:
        """``{timeout?}``: readiness off, wait for requests in flight, then stop and leave with 0."""
        timeout = Reader(args, "timeout").seconds("timeout", 60.0, DRAIN_MAX_SECONDS)
        self._s.start_drain(timeout)
        return {"accepted": True}

    async def set_overrides(self, args: Args) -> Document:
        """``{flags?, env?, unset_flags?, incident?}`` replaces the whole set; used from the next start on."""
        Reader(args, "flags", "env", "unset_flags", "incident")
        self._s.refuse_if_frozen()
        p = self._p
        await p.surroundings.refresh()
        made = overrides.build(args, p.surroundings.key(), p.settings.argv, p.settings.env, rfc3339(p.clock.wall()))
        write_json(p.run_dir.overrides_path, made.to_json())
        self._s.overrides_notice = None
        return {"overrides": made.to_json(), "effective_argv": redact_argv(made.apply_argv(p.settings.argv))}

    async def clear_overrides(self, args: Args) -> Document:
        """Back to the operator's own command from the next start on."""
        Reader(args)
        path = self._p.run_dir.overrides_path
        existed = path.exists()
        path.unlink(missing_ok=True)
        return {"cleared": existed}

    async def probe(self, args: Args) -> Document:
        """``{name, arch?, costly?}`` with name ptxas, processes, host, shm, env or gpu."""
        reader = Reader(args, "name", "arch", "costly")
        name = reader.text("name")
        if name == "gpu":
            return await self._gpus.probe(reader.switch("costly", False) if "costly" in args else None)
        if name == "ptxas":
            return await self._probe_ptxas(args.get("arch"))
        if name == "processes":
            return self._probe_processes()
        if name == "host":
            return await self._host.read(self._subject)
        if name == "shm":
            return shared_memory()
        if name == "env":
            return {
                "env": redact_env(self._environment()),
                "operator_env": redact_env(self._p.settings.env),
            }
        raise LauncherError(
            f"unknown probe {name!r}", code="bad-args", remedy="use ptxas, processes, host, shm, env or gpu"
        )

    async def _probe_ptxas(self, wanted: object) -> Document:
        p = self._p
        arch = ptxas.parse_arch(wanted) if isinstance(wanted, (str, int, float)) else None
        if wanted is not None and arch is None:
            raise LauncherError(f"arch {wanted!r} is none", code="bad-args", remedy="send sm_90a, 90 or 9.0")
        if arch is None:
            cards = visible((await p.surroundings.probe_gpus(with_processes=False)).gpus, p.settings.env)
            arch = next((ptxas.parse_arch(g.compute_capability) for g in cards if g.compute_capability), None)
        await p.surroundings.refresh()
        return await ptxas.probe_ptxas(self._tools, arch, p.surroundings.stack, self._environment())

    def _environment(self) -> Mapping[str, str]:
        return self._s.life.env if self._s.life else self._p.settings.env

    def close(self) -> None:
        """End what the verbs keep running."""
        self._gpus.close()

    def _probe_processes(self) -> Document:
        life = self._s.life
        current = life.pid if life is not None and life.alive else None
        members = self._p.cleanup.members()
        left = {process.pid for process in self._p.cleanup.leftovers(current)}
        own = [_process(process) for process in members if process.pid not in left]
        leftovers = [_process(process) for process in members if process.pid in left]
        return {
            "processes": own[:PROCESSES_SHOWN],
            "leftovers": leftovers[:PROCESSES_SHOWN],
            "not_shown": max(0, len(own) - PROCESSES_SHOWN) + max(0, len(leftovers) - PROCESSES_SHOWN),
            "cgroup": cgroup_memory(current or "self").to_json(),
        }

    def _subject(self) -> Subject:
        """Runs in a thread: it reads all of /proc."""
        life, settings = self._s.life, self._p.settings
        argv, env = (life.argv, life.env) if life else (settings.argv, settings.env)
        spaces = places(argv, env, str(self._p.run_dir.path))
        return Subject(pids=[process.pid for process in self._p.cleanup.members()], spaces=spaces)

    async def end_orphans(self, args: Args) -> Document:
        """SIGKILL to what earlier servers left behind in the own subtree."""
        Reader(args)
        return {"ended": await self._s.end_orphans()}

    async def verdict(self, args: Args) -> Document:
        """``{state, reason?, acting?}``: what the watcher sees now; the probes answer with it for 10 s."""
        reader = Reader(args, "state", "reason", "acting")
        state = reader.text("state")
        if state not in VERDICT_STATES:
            known = ", ".join(sorted(VERDICT_STATES))
            raise LauncherError(f"unknown state {state!r}", code="bad-args", remedy=f"use one of {known}")
        self._s.give_opinion(state, reader.text("reason", ""), reader.switch("acting", False))
        return {}

    async def hold(self, args: Args) -> Document:
        """``{exit_seq, seconds}``: the watcher decides about this exit; no own restart until then."""
        reader = Reader(args, "exit_seq", "seconds")
        held = self._s.hold(reader.integer("exit_seq"), reader.seconds("seconds", None, HOLD_MAX_SECONDS))
        return {"exit_seq": held.exit_seq, "until_monotonic": held.until}

    async def freeze(self, args: Args) -> Document:
        """Stop all acting."""
        Reader(args)
        self._p.run_dir.set_frozen(True)
        return {"frozen": True}

    async def thaw(self, args: Args) -> Document:
        """Go on acting."""
        Reader(args)
        self._p.run_dir.set_frozen(False)
        self._s.thawed()
        return {"frozen": False}

    async def reset(self, args: Args) -> Document:
        """Close the breaker and forget the failures."""
        Reader(args)
        self._s.reset()
        return {"breaker_open": False}

    async def events(self, args: Args) -> AsyncGenerator[Document, None]:
        """``{after?}``: the events after that number, then each as it happens."""
        after = Reader(args, "after").integer("after", 0)
        events = self._p.events
        self._s.listeners += 1
        try:
            yield {"ok": True, "result": {"seq": events.seq}}
            if after > events.seq:
                after = 0
            while True:
                batch = events.since(after)
                for event in batch:
                    after = int(str(event["seq"]))
                    yield {"event": event}
                if not batch:  # nothing is awaited between the look and the wait, so no event is missed
                    await events.changed.wait()
        finally:
            self._s.listeners -= 1

    async def log(self, args: Args) -> AsyncGenerator[Document, None]:
        """``{after?}``: the log from that offset (default: the oldest kept byte), then live."""
        log = self._p.log
        offset = min(Reader(args, "after").integer("after", log.start), log.end)
        yield {"ok": True, "result": {"offset": offset, "start": log.start, "end": log.end}}
        while True:
            piece = log.read(offset, LOG_CHUNK_BYTES)
            if not piece.data:
                await log.changed.wait()
                continue
            offset = piece.end
            data = base64.b64encode(piece.data).decode()
            yield {"log": {"offset": piece.offset, "data": data, "dropped": piece.dropped, "start": piece.start}}


def _process(process: Process) -> Document:
    return {
        "pid": process.pid, "ppid": process.ppid, "name": process.name, "cmdline": command_line(process.pid),
        "rss_bytes": process.rss_bytes, "state": process.state, "cpu_seconds": process.cpu_seconds,
    }  # fmt: skip
