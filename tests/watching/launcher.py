"""A launcher that a test holds in its hands: the real wire on a real socket, a server that is only told of.

It answers verbs and streams events and log as ``agent launch`` does. The test says when the server starts, prints,
becomes ready and ends; ``slow_log`` and ``slow_events`` hold one stream back, so that the other overtakes it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

TOKEN = "t" * 32
Document = dict[str, object]


class Gate:
    """A bell, and a door that a test may keep shut."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.shut = False

    def ring(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self) -> None:
        await self._changed.wait()

    def open(self) -> None:
        self.shut = False
        self.ring()


class FakeLauncher:
    """One launcher with its server. ``calls`` are the verbs that were asked of it, with their arguments."""

    def __init__(self, run_dir: Path, *, seq: int = 0, exit_seq: int = 0, log_end: int = 0) -> None:
        self.run_dir = run_dir
        self.calls: list[tuple[str, Document]] = []
        self.events: list[Document] = []
        self.seq = seq
        self.exit_seq = exit_seq
        self.log: list[tuple[int, bytes, int | None]] = []
        self.log_end = log_end
        self.begins: int | None = None
        self.pid: int | None = None
        self.ready_at: str | None = None
        self.last_exit: Document | None = None
        self.restarts = -1
        self.refusals: dict[str, str] = {}
        self.on_restart: Callable[[], None] = lambda: None
        self.url = "http://127.0.0.1:9"
        self.processes: list[Document] = []
        self.slow_log, self.slow_events = Gate(), Gate()
        self._server: asyncio.AbstractServer | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what the test does --------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeLauncher:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        (self.run_dir / "token").write_text(TOKEN)
        path = self.run_dir / "control.sock"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, str(path), limit=1 << 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.go()

    async def go(self) -> None:
        """The launcher is gone, as by SIGKILL."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self) -> None:
        """A new process of the server."""
        self.pid, self.ready_at = 4000 + self.seq, None
        self.restarts += 1
        self._count()
        self.begins = self.log_end
        self.event("started", pid=self.pid, restarts=self.restarts, overridden=False, log_offset=self.begins)

    def _count(self) -> None:
        """One more start, written before it is told of, as ``agent launch`` does."""
        file = self.run_dir / "starts.json"
        known = json.loads(file.read_text())["starts"] if file.exists() else 0
        file.write_text(json.dumps({"v": 1, "starts": known + 1}))

    def ready(self) -> None:
        self.ready_at = _at(0)
        self.event("ready", pid=self.pid, seconds=1.0)

    def print(self, text: str) -> None:
        """Output of the server."""
        data = text.encode()
        self.log.append((self.log_end, data, self.begins))
        self.log_end += len(data)
        self.slow_log.ring()

    def end(
        self,
        code: int | None = 0,
        *,
        signal: int | None = None,
        asked: bool = False,
        reason: str = "exit",
        age: float = 0.0,
    ) -> Document:
        """The server's process ends; the exit record."""
        self.exit_seq += 1
        record: Document = {
            "v": 1,
            "seq": self.exit_seq,
            "pid": self.pid,
            "command_hash": "c0ffee",
            "started_at": _at(age + 60),
            "ready_at": self.ready_at,
            "exited_at": _at(age),
            "code": code,
            "signal": signal,
            "asked": asked,
            "reason": reason,
            "oom_kill_delta": 0,
            "log_offset": self.log_end,
        }
        with (self.run_dir / "exits.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.pid, self.last_exit = None, record
        self.event("exit", exit=record, asked=asked)
        return record

    def event(self, kind: str, **fields: object) -> None:
        self.seq += 1
        self.events.append({"seq": self.seq, "at": _at(0), "at_monotonic": 0.0, "kind": kind, **fields})
        self.slow_events.ring()

    def asked(self, verb: str) -> list[Document]:
        """The arguments of each call of ``verb``."""
        return [arguments for name, arguments in self.calls if name == verb]

    def status(self) -> Document:
        return {
            "v": 1,
            "state": "serving" if self.ready_at else "starting",
            "child_pid": self.pid,
            "ready_at": self.ready_at if self.pid else None,
            "restarts": max(0, self.restarts),
            "effective_argv": ["vllm", "serve", "tiny"],
            "operator_argv": ["vllm", "serve", "tiny"],
            "overrides": None,
            "url": self.url,
            "last_exit": self.last_exit,
            "log_offset": self.log_end,
            "log_start": 0,
            "start_log_offset": self.begins,
            "can_append_flags": True,
            "breaker_open": False,
            "event_seq": self.seq,
            "exit_seq": self.exit_seq,
        }

    # -- the wire -------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # the connection was made in the moment in which the launcher went
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            # A task of a stream server that is cancelled is reported as a failure by asyncio itself.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(json.loads(await reader.readuntil(b"\n")), writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Document, writer: asyncio.StreamWriter) -> None:
        verb, arguments = str(request["verb"]), request["args"]
        assert request["token"] == TOKEN and isinstance(arguments, dict)
        if verb in ("events", "log"):
            after = int(arguments.get("after") or 0)
            async for item in self._events(after) if verb == "events" else self._log(after):
                await self._send(writer, item)
            return
        self.calls.append((verb, arguments))
        if verb in self.refusals:
            error = {"code": self.refusals[verb], "message": f"{verb} is refused", "remedy": None}
            await self._send(writer, {"ok": False, "error": error})
            return
        await self._send(writer, {"ok": True, "result": self._call(verb, arguments)})

    def _call(self, verb: str, arguments: Document) -> Document:
        if verb == "status":
            return self.status()
        if verb == "restart":
            self.on_restart()
        if verb == "probe":
            return {"available": False, "reason": "no card", "processes": self.processes, "operator_env": {}}
        if verb in ("freeze", "thaw"):
            flag = self.run_dir / "freeze"
            flag.touch() if verb == "freeze" else flag.unlink(missing_ok=True)
        return {"accepted": True}

    async def _send(self, writer: asyncio.StreamWriter, item: Document) -> None:
        writer.write(json.dumps({"v": 1, "id": 1, **item}).encode() + b"\n")
        await writer.drain()

    async def _events(self, after: int) -> AsyncIterator[Document]:
        yield {"ok": True, "result": {"seq": self.seq}}
        after = 0 if after > self.seq else after
        while True:
            ready = [] if self.slow_events.shut else [one for one in self.events if int(str(one["seq"])) > after]
            for one in ready:
                after = int(str(one["seq"]))
                yield {"event": one}
            if not ready:
                await self.slow_events.wait()

    async def _log(self, after: int) -> AsyncIterator[Document]:
        yield {"ok": True, "result": {"offset": after, "start": 0, "end": self.log_end}}
        while True:
            ready = [] if self.slow_log.shut else [one for one in self.log if one[0] + len(one[1]) > after]
            for offset, data, start in ready:
                rest = data[max(0, after - offset) :]
                after = offset + len(data)
                encoded = base64.b64encode(rest).decode()
                yield {"log": {"offset": after - len(rest), "data": encoded, "dropped": 0, "start": start}}
            if not ready:
                await self.slow_log.wait()


def _at(seconds_ago: float) -> str:
    moment = datetime.now(timezone.utc) - timedelta(seconds=seconds_ago)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
