"""Where the evidence of one server comes from: a launcher that owns it, or its URL and log files alone.

Both offer the same few things: connect, the tasks that bring evidence, a round of slow probes, hands (or none), and
the situation for planning. The launcher's side also tells the launcher every few seconds how the server is judged,
so that its probes can answer for the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from agent.collect import (
    LauncherEvent,
    LauncherSource,
    LogFile,
    Target,
    VllmClient,
    exit_record,
    from_probe,
    of_listener,
)
from agent.errors import LauncherError
from agent.launch import LauncherClient
from agent.model import Cause, Exit, Mode, NotMeasured, parse_rfc3339
from agent.remediate import Hands, Situation
from agent.watch.evidence import ServerEvidence
from agent.watch.hands import LauncherHands
from agent.watch.liveness import Child
from agent.watch.situation import SituationReader
from agent.watch.startlog import StartLog
from agent.watch.tasks import every
from agent.watch.world import ServerSpec, World

VERDICT_SECONDS = 2.0
CONNECT_SECONDS = 0.25
STALE_EXIT_SECONDS = 5.0

Body = Callable[[], Awaitable[None]]


class Watched(Protocol):
    """The part of :class:`agent.watch.server.ServerWatch` that a source feeds."""

    name: str
    log: StartLog
    evidence: ServerEvidence

    @property
    def acting(self) -> bool: ...

    def began(self, reason: str) -> None: ...

    async def ended(self, record: Exit) -> None: ...

    def missed(self, record: Exit) -> None: ...


class Source(Protocol):
    """``hands`` None: nothing may be done to the server. ``bodies`` are the tasks that bring evidence."""

    @property
    def hands(self) -> Hands | None: ...

    async def connect(self) -> None: ...

    def bodies(self) -> Mapping[str, Body]: ...

    async def probe(self) -> None: ...

    def frozen(self) -> bool: ...

    async def freeze(self, frozen: bool) -> None: ...

    async def reset(self) -> None: ...

    async def situation(self, cause: Cause) -> Situation: ...

    async def close(self) -> None: ...


def make_source(spec: ServerSpec, watched: Watched, world: World) -> Source:
    """By run-dir where there is one, else attached."""
    if spec.run_dir is not None:
        return LauncherSide(spec, spec.run_dir, watched, world)
    return AttachedSide(spec, watched, world)


def _modes(world: World) -> dict[str, Mode]:
    return {action: world.current.value.mode(action) for action in world.current.value.actions}


class LauncherSide:
    """A launcher owns the server."""

    def __init__(self, spec: ServerSpec, run_dir: Path, watched: Watched, world: World) -> None:
        self._spec = spec
        self._run_dir = run_dir
        self._watched = watched
        self._world = world
        self._client = LauncherClient(run_dir)
        self._stream = LauncherSource(self._client, world.clock)
        self._hands = LauncherHands(self._client)
        self._situation = SituationReader(watched.evidence, self._hands, lambda: _modes(world))
        self._history = 0
        self._seen_key = f"watch/events/{spec.name}"

    @property
    def hands(self) -> Hands | None:
        return self._hands

    async def connect(self) -> None:
        """Wait for the launcher, take its status, open the HTTP client. A launcher of another protocol is refused."""
        said = ""
        while True:
            try:
                status = await self._client.call("status")
                break
            except LauncherError as error:
                if error.code in ("protocol", "version"):
                    raise
                if error.message != said:
                    said = error.message
                    self._world.narrator.line(f"{self._spec.name}: waiting for the launcher: {said}")
                await self._world.clock.sleep(CONNECT_SECONDS)
        self._history = int(str(status.get("event_seq") or 0))
        if status.get("child_pid") is not None:
            self._watched.began("operator")
        await self._took(status)
        self._watched.log.offset = _start_of_log(status)

    async def _took(self, status: Mapping[str, Any]) -> None:
        evidence = self._watched.evidence
        evidence.status = status
        url = self._spec.url or status.get("url")
        if url and (evidence.client is None or evidence.client.url != url):
            await self.close()
            target = Target(
                url=str(url),
                api_key=self._spec.api_key,
                tls_ca=self._spec.tls_ca,
                tls_verify=bool(self._spec.url),
            )
            evidence.client = await VllmClient(target, self._world.clock).__aenter__()
        evidence.saw_child(_child(status))

    def bodies(self) -> Mapping[str, Body]:
        return {
            "events": self._events,
            "log": self._log,
            "verdict": lambda: every(VERDICT_SECONDS, self._verdict, self._world.clock),
        }

    async def _events(self) -> None:
        status = self._watched.evidence.status
        found_dead = exit_record(status.get("last_exit") or {}) if status.get("child_pid") is None else None
        if found_dead is not None:
            await self._watched.ended(found_dead)
        stored = self._world.journal.kv_get(self._seen_key)
        after = min(int(stored), self._history) if stored is not None else self._history
        async for event in self._stream.events(after):
            await self._event(event)
            self._world.journal.kv_set(self._seen_key, str(event.seq))

    async def _event(self, event: LauncherEvent) -> None:
        if event.seq <= self._history and event.kind != "exit":
            return  # the status that was taken after it says more
        if event.kind == "started":
            self._watched.began(_start_reason(event.data))
            await self._refresh()
        elif event.kind == "ready":
            self._watched.evidence.saw_child(Child.READY)
        elif event.kind == "exit":
            await self._exited(event)
        elif event.kind in ("draining", "stopping"):
            self._watched.evidence.saw_child(Child.DRAINING)
        else:
            self._world.journal.append_event(event.kind, self._spec.name, dict(event.data))
            if event.kind not in ("restarting",):
                text = event.data.get("text") or event.data.get("reason") or ""
                self._world.narrator.line(f"{self._spec.name}: launcher: {event.kind} {text}".rstrip())

    async def _exited(self, event: LauncherEvent) -> None:
        record = exit_record(event.data)
        if record is None:
            self._world.narrator.line(f"{self._spec.name}: an exit record could not be read")
            return
        if await self._overtaken(record):
            self._watched.missed(record)
        else:
            await self._watched.ended(record)

    async def _overtaken(self, record: Exit) -> bool:
        """The launcher has already started the server again: this exit is history."""
        if self._world.clock.now().timestamp() - _epoch(record.exited_at) < STALE_EXIT_SECONDS:
            return False
        status = await self._status()
        last = exit_record(status.get("last_exit") or {})
        running = status.get("child_pid") is not None
        return running or (last is not None and last.seq > record.seq)

    async def _log(self) -> None:
        log = self._watched.log
        async for chunk in self._stream.log(lambda: log.offset):
            self._world.metrics.log_read(self._spec.name, len(chunk.data), chunk.dropped)
            log.feed(chunk.data, offset=chunk.offset, dropped=chunk.dropped)
            await asyncio.sleep(0)

    async def _verdict(self) -> None:
        standing = self._watched.evidence.standing
        try:
            await self._client.call(
                "verdict", state=standing.state.value, reason=standing.reason, acting=self._watched.acting
            )
        except LauncherError as error:
            self._stream.trouble = NotMeasured(check="launcher", reason=error.message)

    async def _refresh(self) -> None:
        status = await self._status()
        if status:
            await self._took(status)

    async def _status(self) -> dict[str, Any]:
        try:
            return await self._client.call("status")
        except LauncherError:
            return {}

    async def probe(self) -> None:
        evidence = self._watched.evidence
        evidence.gpus = await self._stream.gpus()
        try:
            evidence.processes = from_probe(await self._client.call("probe", name="processes"))
        except LauncherError as error:
            evidence.processes = NotMeasured(check="processes", reason=error.message)
        status = await self._status()
        if status:
            evidence.status = status

    def frozen(self) -> bool:
        return (self._run_dir / "freeze").exists()

    async def freeze(self, frozen: bool) -> None:
        await self._client.call("freeze" if frozen else "thaw")

    async def reset(self) -> None:
        await self._client.call("reset")

    async def situation(self, cause: Cause) -> Situation:
        return await self._situation(cause)

    async def close(self) -> None:
        if self._watched.evidence.client is not None:
            await self._watched.evidence.client.__aexit__(None, None, None)
            self._watched.evidence.client = None


class AttachedSide:
    """Nothing wraps the server: its URL and, where given, its log files."""

    hands: Hands | None = None

    def __init__(self, spec: ServerSpec, watched: Watched, world: World) -> None:
        self._spec = spec
        self._watched = watched
        self._world = world
        self._files = [LogFile(path, world.clock) for path in spec.logs]
        self._situation = SituationReader(watched.evidence, None, lambda: _modes(world))

    async def connect(self) -> None:
        if self._spec.url is not None:
            target = Target(url=self._spec.url, api_key=self._spec.api_key, tls_ca=self._spec.tls_ca)
            self._watched.evidence.client = await VllmClient(target, self._world.clock).__aenter__()

    def bodies(self) -> Mapping[str, Body]:
        return {f"log {index}": self._follower(file) for index, file in enumerate(self._files)}

    def _follower(self, file: LogFile) -> Body:
        async def follow() -> None:
            async for data in file.chunks():
                self._world.metrics.log_read(self._spec.name, len(data), 0)
                self._watched.log.feed(data)
                await asyncio.sleep(0)

        return follow

    async def probe(self) -> None:
        evidence = self._watched.evidence
        address = urlsplit(self._spec.url or "")
        if address.hostname in ("127.0.0.1", "localhost", "::1") and address.port:
            evidence.processes = await asyncio.to_thread(of_listener, address.port)
        reason = "attached without a launcher: nothing here can ask the driver"
        evidence.gpus = NotMeasured(check="gpu memory", reason=reason)

    def frozen(self) -> bool:
        return False

    async def freeze(self, frozen: bool) -> None:
        raise LauncherError("nothing is done to an attached server, so there is nothing to freeze", code="no-hands")

    async def reset(self) -> None:
        return

    async def situation(self, cause: Cause) -> Situation:
        return await self._situation(cause)

    async def close(self) -> None:
        if self._watched.evidence.client is not None:
            await self._watched.evidence.client.__aexit__(None, None, None)
            self._watched.evidence.client = None


def _child(status: Mapping[str, Any]) -> Child | None:
    """What the launcher knows for itself; its ``state`` also holds what we told it, so that is not asked."""
    if status.get("child_pid") is None:
        asked = (status.get("last_exit") or {}).get("asked")
        return None if asked is None else Child.STOPPED if asked else Child.DEAD
    if status.get("state") == "draining":
        return Child.DRAINING
    return Child.READY if status.get("ready_at") else Child.STARTING


def _start_reason(started: Mapping[str, Any]) -> str:
    """``operator`` for the first start of a launcher, ``remedy`` with overrides in force, else ``restart``."""
    if not started.get("restarts"):
        return "operator"
    return "remedy" if started.get("overridden") else "restart"


def _start_of_log(status: Mapping[str, Any]) -> int:
    """Where the newest start's output begins: behind the last exit's, or where the launcher's log begins."""
    offset = int((status.get("last_exit") or {}).get("log_offset") or 0)
    running = status.get("child_pid") is not None
    return offset if running and offset <= int(status.get("log_offset") or 0) else 0


def _epoch(moment: str) -> float:
    try:
        return parse_rfc3339(moment).timestamp()
    except ValueError:
        return 0.0
