"""The HTTP side of the stand-in: HTTP/1.1 over asyncio streams, as much as a vLLM client needs.

In come bytes of one connection; out go a parsed `Request` and a `Reply` that the handler fills, as JSON, text
or a stream of server-sent events. Keep-alive, chunked request bodies and a limit on every size; a request
that cannot be parsed gets uvicorn's 400 and the connection ends. An own server and not http.server: hundreds
of streams at once are asked for, in one thread, and an access line must be printed when the headers go out,
as uvicorn does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

MAX_BODY = 64 << 20
KEEP_ALIVE_SECONDS = 5.0


class BadRequest(Exception):
    """Bytes that are no HTTP request."""


@dataclass(frozen=True)
class Request:
    """One request; ``headers`` with lower-case names, ``peer`` as host:port for the access line."""

    method: str
    path: str
    query: str
    version: str
    headers: dict[str, str]
    body: bytes
    peer: str
    began: float = field(default_factory=time.monotonic)

    @property
    def keep_alive(self) -> bool:
        connection = self.headers.get("connection", "").lower()
        return connection != "close" and (self.version == "1.1" or connection == "keep-alive")


class Reply:
    """What goes back. ``on_start`` is called once with the status, when the headers go out."""

    def __init__(
        self, writer: asyncio.StreamWriter, request: Request, on_start: Callable[[Request, int], None]
    ) -> None:
        self._writer = writer
        self._request = request
        self._on_start = on_start
        self.status = 0
        self.size = 0
        self.handler: str | None = None

    async def json(self, status: int, document: object, headers: tuple[str, ...] = ()) -> None:
        await self.send(status, json.dumps(document).encode(), "application/json", headers)

    async def send(self, status: int, body: bytes, kind: str = "", headers: tuple[str, ...] = ()) -> None:
        """A whole answer at once."""
        self.size = len(body)
        lines = [f"content-length: {len(body)}", *([f"content-type: {kind}"] if kind else []), *headers]
        self._head(status, lines)
        self._writer.write(body if self._request.method != "HEAD" else b"")
        await self._writer.drain()

    async def begin(self) -> None:
        """Start a stream of events; the status can no longer change."""
        self._head(200, ["content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked"])
        await self._writer.drain()

    async def event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self.size += len(payload)
        self._writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, lines: list[str]) -> None:
        self.status = status
        self._on_start(self._request, status)
        keep = [] if self._request.keep_alive else ["connection: close"]
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        head = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"date: {date}",
            "server: uvicorn",
            *lines,
            *keep,
        ]
        self._writer.write(("\r\n".join(head) + "\r\n\r\n").encode())


Handler = Callable[[Request, Reply, asyncio.StreamReader], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader, peer: str) -> Request | None:
    """The next request of a connection; None when the client is done; raises `BadRequest`."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), KEEP_ALIVE_SECONDS)
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.TimeoutError):
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("headers too large") from error
    first, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(first)
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(line)
        headers[name.strip().lower()] = value.strip()
    path, _, query = parts[1].partition("?")
    body = await _body(reader, headers)
    return Request(parts[0], path, query, parts[2][5:], headers, body, peer)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _chunks(reader)
        size = int(headers.get("content-length", "0"))
        if not 0 <= size <= MAX_BODY:
            raise BadRequest("body too large")
        return await reader.readexactly(size)
    except (ValueError, asyncio.IncompleteReadError, ConnectionError) as error:
        raise BadRequest("body incomplete") from error


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if not 0 <= size <= MAX_BODY - len(body):
            raise BadRequest("body too large")
        body += await reader.readexactly(size)
        await reader.readline()
        if size == 0:
            return bytes(body)


async def serve_connection(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handle: Handler,
    on_start: Callable[[Request, int], None],
) -> None:
    """All requests of one connection, one after the other."""
    name = writer.get_extra_info("peername")
    peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
    try:
        while (request := await read_request(reader, peer)) is not None:
            await handle(request, Reply(writer, request, on_start), reader)
            if not request.keep_alive:
                return
    except BadRequest:
        writer.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
        )
        writer.write(b"Invalid HTTP request received.")
    except ConnectionError:
        pass
    finally:
        with contextlib.suppress(ConnectionError, RuntimeError):
            writer.close()
