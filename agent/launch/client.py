"""The brain's side of the control socket.

In: a run-dir. Out: answers as objects, events and log as streams. Every call has a connection and a limit of
its own; every failure is a LauncherError with a code: ``unreachable``, ``timeout``, ``version``,
``protocol``, or the launcher's own refusal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from agent.errors import LauncherError
from agent.launch.rundir import short_path
from agent.launch.wire import VERSION, encode

ANSWER_BYTES = 4 << 20
CALL_SECONDS = 30.0
CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class LogChunk:
    """Bytes of the server's output from ``offset`` on; ``dropped`` bytes right before them are lost. ``start`` is
    where the output of the start that wrote them begins; None when that was before the launcher.
    """

    offset: int
    data: bytes
    dropped: int
    start: int | None = None

    @property
    def end(self) -> int:
        """Where the next chunk begins; what to ask for after a reconnection."""
        return self.offset + len(self.data)


class LauncherClient:
    """Talks to the launcher of ``run_dir``; holds no connection between calls."""

    def __init__(self, run_dir: str | Path, *, timeout: float = CALL_SECONDS) -> None:
        self.run_dir = Path(run_dir)
        self._timeout = timeout

    async def call(self, verb: str, **args: object) -> dict[str, object]:
        """The verb's result. Raises LauncherError."""
        try:
            return await asyncio.wait_for(self._call(verb, args), self._timeout)
        except asyncio.TimeoutError:
            raise LauncherError(
                f"the launcher did not answer {verb!r} within {self._timeout:g} s",
                code="timeout", where=str(self.run_dir), remedy="look at the launcher's stderr",
            ) from None  # fmt: skip

    async def _call(self, verb: str, args: dict[str, object]) -> dict[str, object]:
        async with self._connection(verb, args) as reader:
            answer = await self._line(reader)
            result = answer.get("result")
            if not isinstance(result, dict):
                raise self._protocol_error("an answer without a result")
            return result

    async def events(self, after: int = 0) -> AsyncGenerator[dict[str, object], None]:
        """The events after number ``after``, then each as it happens. Raises LauncherError when the
        launcher goes.
        """
        async with self._connection("events", {"after": after}) as reader:
            await self._line(reader)
            while True:
                event = (await self._line(reader)).get("event")
                if not isinstance(event, dict):
                    raise self._protocol_error("a line without an event")
                yield event

    async def log(self, after: int | None = None) -> AsyncGenerator[LogChunk, None]:
        """The server's output from offset ``after`` on (None: from the oldest kept byte), then live."""
        args: dict[str, object] = {} if after is None else {"after": after}
        async with self._connection("log", args) as reader:
            await self._line(reader)
            while True:
                chunk = (await self._line(reader)).get("log")
                if not isinstance(chunk, dict):
                    raise self._protocol_error("a line without log")
                data = base64.b64decode(str(chunk["data"]))
                start = chunk.get("start")
                yield LogChunk(
                    int(chunk["offset"]), data, int(chunk["dropped"]), int(start) if start is not None else None
                )

    @contextlib.asynccontextmanager
    async def _connection(self, verb: str, args: dict[str, object]) -> AsyncIterator[asyncio.StreamReader]:
        path = self.run_dir / "control.sock"
        try:
            token = (self.run_dir / "token").read_text(encoding="ascii").strip()
            with short_path(path) as name:
                opening = asyncio.open_unix_connection(name, limit=ANSWER_BYTES)
                reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise LauncherError(
                f"no launcher answers: {getattr(error, 'strerror', None) or error or 'timeout'}",
                code="unreachable", where=str(path),
                remedy="start `agent launch` with this --run-dir, and use it as its user or group",
            ) from error  # fmt: skip
        try:
            writer.write(encode({"v": VERSION, "id": 1, "token": token, "verb": verb, "args": args}))
            await writer.drain()
            yield reader
        except ConnectionError as error:
            raise self._gone() from error
        finally:
            writer.close()

    async def _line(self, reader: asyncio.StreamReader) -> dict[str, object]:
        try:
            line = await reader.readuntil(b"\n")
            document = json.loads(line)
        except asyncio.IncompleteReadError:
            raise self._gone() from None
        except (ValueError, asyncio.LimitOverrunError):
            raise self._protocol_error("a line that is not JSON") from None
        if not isinstance(document, dict):
            raise self._protocol_error("a line that is no object")
        if document.get("v") != VERSION:
            raise LauncherError(
                f"the launcher speaks protocol {document.get('v')!r}, this client {VERSION}",
                code="version", where=str(self.run_dir), remedy="use watcher and launcher of one release",
            )  # fmt: skip
        error = document.get("error")
        if document.get("ok") is False and isinstance(error, dict):
            remedy = error.get("remedy")
            raise LauncherError(
                str(error.get("message")), code=str(error.get("code")), where=str(self.run_dir),
                remedy=str(remedy) if remedy else None,
            )  # fmt: skip
        return document

    def _gone(self) -> LauncherError:
        return LauncherError(
            "the launcher closed the connection", code="unreachable", where=str(self.run_dir),
            remedy="look at the launcher's stderr",
        )  # fmt: skip

    def _protocol_error(self, what: str) -> LauncherError:
        return LauncherError(
            f"the launcher sent {what}", code="protocol", where=str(self.run_dir),
            remedy="use watcher and launcher of one release",
        )  # fmt: skip
