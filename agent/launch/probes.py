"""The probe port: ``/livez`` and ``/readyz`` for a kubelet or a load balancer.

In: a GET. Out: 200 or 503 with ``{state, since, reason, verdict_age_seconds}``. Never more than these two
paths, never more than 128 connections (descriptors are what a restart needs), and never anything that changes the
server. In state *unknown* readiness is what vLLM's own /health
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from agent.errors import AgentError
from agent.launch import health
from agent.launch.judge import judge
from agent.launch.supervisor import Supervisor
from agent.launch.verbs import Verbs

REQUEST_SECONDS = 5.0
MAX_CONNECTIONS = 128
HEALTH_SECONDS = 1.0
_PHRASE = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class ProbeServer:
    """Answers from the supervisor's facts."""

    def __init__(self, supervisor: Supervisor, verbs: Verbs) -> None:
        self._supervisor = supervisor
        self._verbs = verbs
        self._server: asyncio.AbstractServer | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> None:
        """Raises AgentError where the address is taken or not ours."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=8192)
        except OSError as error:
            raise AgentError(
                f"the probe port cannot be opened: {error.strerror or error}",
                where=f"{host}:{port}",
                remedy="choose another with --probe HOST:PORT, or --probe off",
            ) from error

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        self._open[writer] = None
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            method, path = [*head.split(b" ", 2), b"", b""][:2]
            status, body = await self._answer(method, path.split(b"?")[0])
            data = json.dumps(body).encode() + b"\n"
            lines = (
                f"HTTP/1.1 {status} {_PHRASE[status]}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(lines.encode() + (b"" if method == b"HEAD" else data))
            await writer.drain()
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass  # not an HTTP client, or gone
        except asyncio.CancelledError:
            pass  # the launcher leaves; asyncio 3.10 and 3.11 would print a cancelled handler
        finally:
            self._open.pop(writer, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _make_room(self) -> None:
        """Drop whoever has waited longest: a kubelet asks at once, a flood of idle connections does not."""
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()

    async def _answer(self, method: bytes, path: bytes) -> tuple[int, dict[str, object]]:
        if method not in (b"GET", b"HEAD"):
            return 405, {"error": "only GET"}
        if path not in (b"/livez", b"/readyz"):
            return 404, {"error": "use /livez or /readyz"}
        facts = self._supervisor.facts()
        answer = judge(facts)
        good = answer.live if path == b"/livez" else answer.ready
        if good is None:
            good = await self._asks_server()
        opinion = facts.opinion
        body: dict[str, object] = {
            "state": answer.state,
            "since": self._verbs.state_since(answer.state),
            "reason": answer.reason,
            "verdict_age_seconds": round(facts.now - opinion.at, 3) if opinion else None,
        }
        return 200 if good else 503, body

    async def _asks_server(self) -> bool:
        life = self._supervisor.life
        if life is None or not life.alive:
            return False
        if life.address.headless:
            return life.ready is not None
        reply = await health.get(life.address, health.HEALTH_PATH, HEALTH_SECONDS)
        return reply is not None and reply.status == 200
