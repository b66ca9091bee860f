"""The endpoints of the stand-in: routing, the small ones, the run-time faults, and the count of every
request.

In come parsed requests; out go answers, access lines and the ``http_*`` metrics, grouped and with the
exceptions of vLLM's instrumentation: status by its hundreds, unknown paths under "none", probes and scrapes
not counted.
"""

from __future__ import annotations

import asyncio
import json
import time

from agent.errors import UsageError
from agent.sim.asks import ApiError
from agent.sim.client import EngineClient
from agent.sim.faults import START_ONLY, Fault, parse_fault
from agent.sim.http import Reply, Request
from agent.sim.metrics import Registry
from agent.sim.openai import OpenAi
from agent.sim.options import Settings
from agent.sim.texts import Voice

#: Not counted in http_requests_total, as in vLLM.
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/sim/fault"})
ROUTES = {
    "/health": ("GET",),
    "/load": ("GET",),
    "/ping": ("GET", "POST"),
    "/version": ("GET",),
    "/metrics": ("GET",),
    "/v1/models": ("GET",),
    "/v1/completions": ("POST",),
    "/v1/chat/completions": ("POST",),
    "/sim/fault": ("GET", "POST", "DELETE"),
}


class App:
    """All endpoints of one server; ``load`` counts the requests that are being answered."""

    def __init__(
        self, settings: Settings, voice: Voice, client: EngineClient, registry: Registry, openai: OpenAi
    ) -> None:
        self.settings = settings
        self.voice = voice
        self.client = client
        self.registry = registry
        self.openai = openai
        self.faults: tuple[Fault, ...] = settings.faults
        self.load = 0
        self.unloaded = asyncio.Event()

    def access(self, request: Request, status: int) -> None:
        if self.settings.access_log:
            phrase = {
                200: "OK",
                400: "Bad Request",
                401: "Unauthorized",
                404: "Not Found",
                405: "Method Not Allowed",
            }
            phrase |= {500: "Internal Server Error", 503: "Service Unavailable"}
            target = request.path + (f"?{request.query}" if request.query else "")
            self.voice.uvicorn(
                f'INFO:     {request.peer} - "{request.method} {target} HTTP/{request.version}" '
                f"{status} {phrase.get(status, '')}"
            )

    async def handle(self, request: Request, reply: Reply, reader: asyncio.StreamReader) -> None:
        """One request: route, answer, count."""
        self.load += 1
        self.unloaded.clear()
        try:
            await self._route(request, reply, reader)
        except ApiError as error:
            await reply.json(error.status, error.body)
        finally:
            self.load -= 1
            if not self.load:
                self.unloaded.set()
            if reply.status and request.path not in UNCOUNTED:
                self._count(request, reply)

    def _count(self, request: Request, reply: Reply) -> None:
        handler = request.path if request.method in ROUTES.get(request.path, ()) else "none"
        took = time.monotonic() - request.began
        status = f"{reply.status // 100}xx"
        self.registry.add("http_requests_total", handler=handler, method=request.method, status=status)
        self.registry.observe("http_request_size_bytes", len(request.body), handler=handler)
        self.registry.observe("http_response_size_bytes", reply.size, handler=handler)
        self.registry.observe("http_request_duration_highr_seconds", took)
        self.registry.observe("http_request_duration_seconds", took, handler=handler, method=request.method)

    async def _route(self, request: Request, reply: Reply, reader: asyncio.StreamReader) -> None:
        methods = ROUTES.get(request.path)
        if methods is None:
            await reply.json(404, {"detail": "Not Found"})
        elif request.method not in methods:
            await reply.json(405, {"detail": "Method Not Allowed"}, (f"allow: {', '.join(methods)}",))
        elif request.path.startswith("/v1") and not self._authorised(request):
            await reply.json(401, {"error": "Unauthorized"})
        elif request.path == "/v1/models":
            await reply.json(200, self.openai.models())
        elif request.path.startswith("/v1"):
            chat = request.path == "/v1/chat/completions"
            await self.openai.complete(request, reply, reader, chat=chat)
        elif request.path == "/sim/fault":
            await self._change_faults(request, reply)
        else:
            await self._small(request, reply)

    async def _small(self, request: Request, reply: Reply) -> None:
        """The endpoints that need no engine."""
        if request.path == "/metrics":
            text = self.registry.render()
            await reply.send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif request.path == "/version":
            await reply.json(200, {"version": self.settings.version})
        elif request.path == "/load":
            await reply.json(200, {"server_load": self.load - 1 if self.settings.load_tracking else 0})
        else:
            await reply.send(503 if self.client.dead else 200, b"")

    def _authorised(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return not self.settings.api_keys or (scheme.lower() == "bearer" and token in self.settings.api_keys)

    async def _change_faults(self, request: Request, reply: Reply) -> None:
        """``POST {name, arg}`` adds a fault, ``DELETE`` takes out one or all, ``GET`` lists them."""
        try:
            body = json.loads(request.body or b"{}")
            name, arg = str(body.get("name", "")), body.get("arg")
        except (ValueError, AttributeError):
            await reply.json(400, {"error": "the body is no JSON object", "remedy": 'Send {"name": "hang"}.'})
            return
        if request.method == "DELETE":
            self.faults = tuple(f for f in self.faults if name and f.name != name)
        elif request.method == "POST":
            try:
                fault = parse_fault(name if arg in (None, "") else f"{name}={_plain(arg)}")
                if fault.name in START_ONLY:
                    remedy = f"Start the stand-in with --fault {name}."
                    raise UsageError(f"fault {name} acts at the start only", where="/sim/fault", remedy=remedy)
            except UsageError as error:
                await reply.json(400, {"error": error.message, "remedy": error.remedy})
                return
            self.faults = (*(f for f in self.faults if f.name != fault.name), fault)
        if request.method != "GET":
            self.client.set_faults(self.faults)
        await reply.json(200, {"faults": [{"name": f.name, "arg": f.arg} for f in self.faults]})


def _plain(arg: object) -> str:
    """A JSON number as it is written on a command line."""
    return str(int(arg)) if isinstance(arg, float) and arg.is_integer() else str(arg)
