"""The control socket: one JSON object a line, in and out.

In: ``{"v":1,"id":n,"token":…,"verb":…,"args":{}}``, at most 64 KiB. Out: ``{"v":1,"id":n,"ok":true,
"result":{}}`` or an error with code, message and remedy; streams send further lines. Never trusts a line: the
peer's user and group are checked by the kernel (SO_PEERCRED), the token by its value, the shape here, the
arguments by the verb.

Across PID namespaces SO_PEERCRED gives pid 0; user and group are what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from agent.errors import AgentError, LauncherError
from agent.launch.rundir import RunDir, short_path

VERSION = 1
LINE_BYTES = 64 * 1024
MAX_CONNECTIONS = 64
# Each costs a descriptor, which a restart of the server needs as well. Above this not even a refusal is sent.
MAX_DESCRIPTORS = 2 * MAX_CONNECTIONS
ID_CHARS = 128
SHOWN_CHARS = 200
FIRST_LINE_SECONDS = 30.0
REFUSAL_SECONDS = 2.0

Args = Mapping[str, object]
Call = Callable[[Args], Awaitable[dict[str, object]]]
Stream = Callable[[Args], AsyncGenerator[dict[str, object], None]]


@dataclass(frozen=True)
class Request:
    """One checked line."""

    id: object
    verb: str
    args: Args


def parse_request(line: bytes, token: str) -> Request:
    """Raises LauncherError: bad-request, version, forbidden."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise LauncherError("the line is not JSON", code="bad-request", remedy="send one JSON object a line") from None
    if not isinstance(document, dict):
        raise LauncherError("the line is no object", code="bad-request", remedy="send one JSON object a line")
    if document.get("v") != VERSION:
        raise LauncherError(
            f"protocol version {document.get('v')!r} is not spoken here, {VERSION} is",
            code="version",
            remedy="use a watcher and a launcher of the same release",
        )
    given = document.get("token")
    # JSON can spell half a surrogate pair, which is no UTF-8.
    if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode()):
        raise LauncherError("the token is wrong", code="forbidden", remedy="read it from the run-dir's token file")
    verb, args = document.get("verb"), document.get("args", {})
    if not isinstance(verb, str) or not isinstance(args, dict):
        raise LauncherError(
            "verb must be a string and args an object", code="bad-request", remedy="send the verb's name and an object"
        )
    return Request(_identity(document.get("id")), verb, args)


def _identity(value: object) -> object:
    """The id to send back: a number or a short word; anything else is not repeated."""
    if isinstance(value, str):
        return value if len(value) <= ID_CHARS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def request_id(line: bytes) -> object:
    """The id of a line that may be unusable otherwise."""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(line)
        if isinstance(document, dict):
            return _identity(document.get("id"))
    return None


def encode(document: Mapping[str, object]) -> bytes:
    """One line."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def failure(identity: object, error: AgentError) -> bytes:
    """The error line."""
    code = error.code if isinstance(error, LauncherError) else "failed"
    body = {"code": code, "message": error.message, "remedy": error.remedy}
    return encode({"v": VERSION, "id": identity, "ok": False, "error": body})


class ControlServer:
    """Listens in the run-dir and hands requests to the verbs."""

    def __init__(
        self,
        run_dir: RunDir,
        calls: Mapping[str, Call],
        streams: Mapping[str, Stream],
        *,
        allow_uids: frozenset[int],
        allow_gids: frozenset[int],
    ) -> None:
        self._run_dir = run_dir
        self._calls = calls
        self._streams = streams
        self._uids = allow_uids | {0, os.geteuid()}
        self._gids = allow_gids
        self._open = 0
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Bind, mode 0660. Raises AgentError."""
        path = self._run_dir.socket_path
        path.unlink(missing_ok=True)
        before = os.umask(0o117)
        try:
            with short_path(path) as name:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listener.bind(name)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_BYTES)
        except OSError as error:
            raise AgentError(
                f"the control socket cannot be made: {error.strerror or error}",
                where=str(path),
                remedy="choose a run-dir on a local file system with --run-dir",
            ) from error
        finally:
            os.umask(before)

    def close(self) -> None:
        """Stop listening; the socket file goes."""
        if self._server is not None:
            self._server.close()
        self._run_dir.socket_path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MAX_DESCRIPTORS:
            writer.transport.abort()
            return
        self._open += 1
        try:
            refusal = self._refuse(writer)
            if refusal is not None:
                # Take the request first: a peer that still writes would see a broken pipe, not the reason.
                with contextlib.suppress(ValueError, asyncio.TimeoutError):
                    await asyncio.wait_for(reader.readline(), REFUSAL_SECONDS)
                writer.write(failure(None, refusal))
                await writer.drain()
                return
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer went away
        except asyncio.CancelledError:
            pass  # the launcher leaves; asyncio 3.10 and 3.11 would print a cancelled handler
        finally:
            self._open -= 1
            writer.close()

    def _refuse(self, writer: asyncio.StreamWriter) -> LauncherError | None:
        if self._open > MAX_CONNECTIONS:
            return LauncherError("too many connections", code="busy", remedy="close some and try again")
        sock = writer.get_extra_info("socket")
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, gid = struct.unpack("3i", credentials)
        if uid in self._uids or gid in self._gids:
            return None
        return LauncherError(
            f"user {uid}, group {gid} may not talk to this launcher",
            code="forbidden",
            remedy="start the launcher with --allow-uid or --allow-gid",
        )

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False ends the connection."""
        try:
            line = await asyncio.wait_for(reader.readuntil(b"\n"), FIRST_LINE_SECONDS)
        except asyncio.LimitOverrunError:
            error = LauncherError(
                f"the line is longer than {LINE_BYTES} bytes",
                code="bad-request",
                remedy="send a shorter request",
            )
            writer.write(failure(None, error))
            await writer.drain()
            return False
        except asyncio.TimeoutError:
            return False
        try:
            request = parse_request(line, self._run_dir.token)
            if request.verb in self._streams:
                await self._stream(request, reader, writer)
                return False
            result = await self._call(request)
        except AgentError as error:
            writer.write(failure(request_id(line), error))
        else:
            writer.write(encode({"v": VERSION, "id": request.id, "ok": True, "result": result}))
        await writer.drain()
        return True

    async def _call(self, request: Request) -> dict[str, object]:
        call = self._calls.get(request.verb)
        if call is None:
            known = ", ".join(sorted((*self._calls, *self._streams)))
            shown = request.verb[:SHOWN_CHARS]
            raise LauncherError(f"unknown verb {shown!r}", code="unknown-verb", remedy=f"use one of {known}")
        try:
            return await call(request.args)
        except OSError as error:
            raise LauncherError(str(error), code="failed", remedy="check the run-dir's disk and permissions") from error
        except (ValueError, RecursionError, OverflowError) as error:
            # Text that is no file name, a number with 10,000 digits: every check is there to refuse such, and the
            # peer gets an answer also where one did not think of it.
            raise LauncherError(
                f"an argument cannot be used: {str(error)[:SHOWN_CHARS]}",
                code="bad-args", remedy="send plain text and numbers within the documented bounds",
            ) from error  # fmt: skip

    async def _stream(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send until the peer closes; a slow peer slows this stream alone."""
        sending = asyncio.ensure_future(self._send_all(request, writer))
        gone = asyncio.ensure_future(_until_closed(reader))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send_all(self, request: Request, writer: asyncio.StreamWriter) -> None:
        async with contextlib.aclosing(self._streams[request.verb](request.args)) as items:
            async for item in items:
                writer.write(encode({"v": VERSION, "id": request.id, **item}))
                await writer.drain()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    """Until the peer closes; what it still sends is thrown away piece by piece, never kept."""
    while await reader.read(LINE_BYTES):
        pass
