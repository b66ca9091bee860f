"""A server that a launcher owns: its events, its log stream, its probes, its verbs.

In: the launcher's control socket. Out: starts and ends in the order in which they happened, log chunks that name
their start, and every two seconds our own judgement of the server to the launcher, so that its probes can answer for
us. The status read at the beginning says what is; the events up to its number are history and say only which ends
were missed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from agent.collect import (
    GpuSource,
    HostSource,
    LauncherEvent,
    LauncherGpu,
    LauncherHost,
    LauncherSource,
    ProcessReading,
    Target,
    VllmClient,
    exit_record,
    from_probe,
)
from agent.errors import LauncherError
from agent.launch import LauncherClient, LogChunk
from agent.model import Cause, Exit, NotMeasured
from agent.remediate import Hands, Situation
from agent.watch.hands import LauncherHands
from agent.watch.liveness import Child
from agent.watch.readback import read_back
from agent.watch.situation import SituationReader
from agent.watch.source import Body, Watched, modes
from agent.watch.starts import StartCounts, start_reason
from agent.watch.tasks import every
from agent.watch.world import ServerSpec, World

VERDICT_SECONDS = 2.0
CONNECT_SECONDS = 0.25
# How much of the log is read where nothing says where the start of a dead server began.
HISTORY_BYTES = 4 * 2**20


class LauncherSide:
    """The launcher of one run-dir."""

    def __init__(self, spec: ServerSpec, run_dir: Path, watched: Watched, world: World) -> None:
        self._spec = spec
        self._run_dir = run_dir
        self._watched = watched
        self._world = world
        self._client = LauncherClient(run_dir)
        self._stream = LauncherSource(self._client, world.clock)
        self.host: HostSource = LauncherHost(self._client)
        self.gpu: GpuSource = LauncherGpu(self._client)
        self._hands = LauncherHands(self._client)
        self._situation = SituationReader(watched.evidence, self._hands, lambda: modes(world))
        self._seen_key = f"watch/events/{spec.name}"
        self._history = 0
        self._seen = 0
        self._live_from = 0
        self._found_dead: Exit | None = None
        self._closed = False
        self._starts = StartCounts(spec.name, world.journal, run_dir)
        self._before: Exit | None = None  # the end before the next start

    @property
    def hands(self) -> Hands | None:
        return self._hands

    @property
    def trouble(self) -> NotMeasured | None:
        return self._stream.trouble

    # -- the beginning --------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Wait for the launcher and take its status. A launcher of another protocol is refused."""
        status = await self._first_status()
        self._history = _number(status, "event_seq")
        self._live_from = _number(status, "log_offset")
        last = self._before = exit_record(status.get("last_exit") or {})
        self._count_found(status)
        at = _start_of_log(status, last)
        log = self._watched.log
        log.offset = at
        if status.get("child_pid") is not None:
            self._watched.began(at=at, child=_child(status) or Child.STARTING)
        else:
            log.begin(at)
            self._found_dead = last
        stored = self._world.journal.kv_get(self._seen_key)
        self._seen = min(int(stored), self._history) if stored is not None else self._history
        self._world.journal.kv_set(self._seen_key, str(self._seen))
        await self._took(status)
        self._watched.evidence.saw_child(_child(status))

    async def _first_status(self) -> Mapping[str, Any]:
        said = ""
        while True:
            try:
                return await self._client.call("status")
            except LauncherError as error:
                if error.code in ("protocol", "version"):
                    raise
                self._stream.away(error.message)
                if error.message != said:
                    said = error.message
                    self._world.narrator.line(f"{self._spec.name}: waiting for the launcher: {said}")
            await self._world.clock.sleep(CONNECT_SECONDS)

    async def _took(self, status: Mapping[str, Any]) -> None:
        """What a status says beside the server's life: of that the events tell, in the order of things."""
        self._stream.answered()
        self._watched.evidence.status = status
        await self._address(self._spec.url or status.get("url"))

    async def _address(self, url: object) -> None:
        """The client of the server; a launcher started with another command may have another port."""
        evidence = self._watched.evidence
        old = evidence.client
        if self._closed or not url or (old is not None and old.url == str(url)):
            return
        target = Target(
            url=str(url),
            api_key=self._spec.api_key,
            tls_ca=self._spec.tls_ca if self._spec.url else None,
            # A launched server is our own child on loopback, and its certificate is made out to another name.
            tls_verify=bool(self._spec.url),
        )
        new = await VllmClient(target, self._world.clock).__aenter__()
        if self._closed:
            await new.close()
            return
        evidence.client = new
        if old is not None:
            await old.close()

    def bodies(self) -> Mapping[str, Body]:
        return {
            "events": self._events,
            "log": self._log,
            "verdict": lambda: every(lambda: VERDICT_SECONDS, self._verdict, self._world.clock),
        }

    def caught_up(self) -> bool:
        return self._watched.log.offset >= self._live_from

    # -- events ---------------------------------------------------------------------------------------------

    async def _events(self) -> None:
        found, self._found_dead = self._found_dead, None
        if found is not None:
            await self._watched.ended(found)
        async with aclosing(self._stream.events(self._seen)) as events:
            async for event in events:
                history = self._stream.lost == 0 and event.seq <= self._history
                # Seen before it is handled: an event that cannot be handled is said once and not met for ever.
                self._seen = event.seq
                await (self._missed(event, found) if history else self._event(event))
                self._world.journal.kv_set(self._seen_key, str(event.seq))

    async def _missed(self, event: LauncherEvent, found: Exit | None) -> None:
        """What happened before we came; the status, which is newer, has told all but the ends."""
        record = exit_record(event.data) if event.kind == "exit" else None
        if record is None or (found is not None and found.seq == record.seq):
            return
        cause = None if record.asked else await read_back(self._client, record, self._world, self._watched)
        self._watched.missed(record, cause)

    async def _event(self, event: LauncherEvent) -> None:
        if event.kind == "started":
            self._count_started(event)
            self._watched.began(at=_offset(event.data))
            await self._refresh()
        elif event.kind == "ready":
            self._watched.evidence.saw_child(Child.READY)
        elif event.kind == "exit":
            await self._exited(event)
        elif event.kind in ("draining", "stopping", "restarting"):
            self._asked_away(event)
        elif event.kind != "xid":  # those come with the cards' rounds, from either kind of source
            self._told(event)

    async def _exited(self, event: LauncherEvent) -> None:
        record = exit_record(event.data)
        if record is None:
            self._world.narrator.line(f"{self._spec.name}: an exit record could not be read")
            self._watched.evidence.saw_child(Child.DEAD)
            return
        self._before = record
        await self._watched.ended(record)

    def _asked_away(self, event: LauncherEvent) -> None:
        """Somebody wants the server to end: what it prints from here on is no fault."""
        if not self._watched.evidence.ended() and event.data.get("by") != "launcher":
            self._watched.evidence.saw_child(Child.DRAINING)

    def _told(self, event: LauncherEvent) -> None:
        self._world.journal.append_event(event.kind, self._spec.name, dict(event.data))
        text = event.data.get("text") or event.data.get("reason") or ""
        self._world.narrator.line(f"{self._spec.name}: launcher: {event.kind} {text}".rstrip())

    # -- starts ---------------------------------------------------------------------------------------------

    def _count_found(self, status: Mapping[str, Any]) -> None:
        running = status.get("child_pid") is not None
        begun = running or isinstance(status.get("start_log_offset"), int)
        self._starts.found(
            running=running,
            restarts=_number(status, "restarts") if begun else None,
            overridden=bool(status.get("overrides")),
        )
        self._world.metrics.set_starts(self._spec.name, self._starts.counts)

    def _count_started(self, event: LauncherEvent) -> None:
        reason = start_reason(
            first=not event.data.get("restarts"),
            overridden=bool(event.data.get("overridden")),
            before=self._before,
            repairing=self._watched.acting,
        )
        self._starts.began(reason)
        self._world.metrics.set_starts(self._spec.name, self._starts.counts)

    # -- the log --------------------------------------------------------------------------------------------

    async def _log(self) -> None:
        log = self._watched.log
        async with aclosing(self._stream.log(lambda: log.offset)) as chunks:
            async for chunk in chunks:
                self._world.metrics.log_read(self._spec.name, len(chunk.data), chunk.dropped)
                self._feed(chunk)
                await asyncio.sleep(0)

    def _feed(self, chunk: LogChunk) -> None:
        """Cut at the place up to which the log was written before we came."""
        log = self._watched.log
        if chunk.offset < log.offset:
            self._live_from = 0  # the run-dir was made anew and its log begins at 0 again
        old = max(0, min(len(chunk.data), self._live_from - chunk.offset))
        if old:
            log.feed(chunk.data[:old], offset=chunk.offset, dropped=chunk.dropped, start=chunk.start, history=True)
        if old < len(chunk.data):
            lost = 0 if old else chunk.dropped
            log.feed(chunk.data[old:], offset=chunk.offset + old, dropped=lost, start=chunk.start)

    # -- rounds and verbs -----------------------------------------------------------------------------------

    async def _verdict(self) -> None:
        standing = self._watched.evidence.standing
        try:
            await self._client.call(
                "verdict", state=standing.state.value, reason=standing.reason, acting=self._watched.acting
            )
        except LauncherError as error:
            self._stream.away(error.message)
        else:
            self._stream.answered()

    async def _refresh(self) -> None:
        try:
            status = await self._client.call("status")
        except LauncherError as error:
            self._stream.away(error.message)
        else:
            await self._took(status)

    async def probe(self) -> None:
        evidence = self._watched.evidence
        if not evidence.cards_told:
            evidence.gpus = await self._stream.gpus()
        await self.look()
        await self._refresh()

    async def look(self) -> None:
        at = self._world.clock.monotonic()
        reading: ProcessReading | NotMeasured
        try:
            reading = from_probe(await self._client.call("probe", name="processes"))
        except LauncherError as error:
            reading = NotMeasured(check="processes", reason=error.message)
        self._watched.evidence.saw_processes(reading, at)

    def frozen(self) -> bool:
        return os.path.lexists(self._run_dir / "freeze")

    async def freeze(self, frozen: bool) -> None:
        await self._client.call("freeze" if frozen else "thaw")

    async def reset(self) -> None:
        await self._client.call("reset")

    async def situation(self, cause: Cause) -> Situation:
        return await self._situation(cause)

    async def close(self) -> None:
        self._closed = True  # an answer that is under way makes no new client
        client, self._watched.evidence.client = self._watched.evidence.client, None
        if client is not None:
            await client.close()


def _number(status: Mapping[str, Any], key: str) -> int:
    return int(str(status.get(key) or 0))


def _child(status: Mapping[str, Any]) -> Child | None:
    """What the launcher knows for itself; its ``state`` also holds what we told it, so that is not asked."""
    if status.get("child_pid") is None:
        asked = (status.get("last_exit") or {}).get("asked")
        return None if asked is None else Child.STOPPED if asked else Child.DEAD
    if status.get("state") == "draining":
        return Child.DRAINING
    return Child.READY if status.get("ready_at") else Child.STARTING


def _offset(started: Mapping[str, object]) -> int | None:
    offset = started.get("log_offset")
    return offset if isinstance(offset, int) else None


def _start_of_log(status: Mapping[str, Any], last: Exit | None) -> int:
    """Where the newest start's output begins; what stands before it belongs to others."""
    begins = status.get("start_log_offset")
    if isinstance(begins, int):
        return begins
    end = _number(status, "log_offset")
    if last is None or last.log_offset > end:
        return _number(status, "log_start")
    if status.get("child_pid") is not None:
        return last.log_offset
    return max(_number(status, "log_start"), last.log_offset - HISTORY_BYTES)
