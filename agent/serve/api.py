"""The HTTP server of the watcher.

In: requests on ``--listen``. Out: state and incidents as JSON (the published schemas), metrics as text,
and the decisions of people handed to the :class:`Backend`. Bounded: bodies of 64 KiB, 1,000 incidents an
answer, 128 connections (aiohttp waits for a first request without a limit of time).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from agent.errors import AgentError, NotFoundError, UsageError
from agent.model import Action, Incident
from agent.serve.backend import Backend
from agent.serve.guard import Token, authorised, errors_as_json, is_loopback
from agent.serve.metrics import AgentMetrics

_MAX_BODY = 64 * 1024
_MAX_INCIDENTS = 1000
_MAX_ACTOR = 64
_MAX_CONNECTIONS = 128


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a write may say. ``actor`` is who decided, for the journal."""

    actor: str = "api"
    server: str | None = None


@dataclass(frozen=True)
class Api:
    """A running API."""

    host: str
    port: int
    runner: web.AppRunner
    listener: asyncio.Server

    async def close(self) -> None:
        """Stop listening."""
        self.listener.close()
        await self.runner.cleanup()


async def start_api(backend: Backend, listen: str, token: Token, metrics: AgentMetrics) -> Api:
    """Serve on ``listen`` (HOST:PORT, port 0 = any). Raises AgentError where the port cannot be taken."""
    host, port = _address(listen)
    routes = _Routes(backend, metrics)
    app = web.Application(middlewares=[errors_as_json(is_loopback(host))], client_max_size=_MAX_BODY)
    write = authorised(token)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_get("/api/v1/status", routes.status)
    app.router.add_get("/api/v1/alerts", routes.alerts)
    app.router.add_get("/api/v1/rules", routes.rules)
    app.router.add_get("/api/v1/incidents", routes.incidents)
    app.router.add_get("/api/v1/incidents/{id}", routes.incident)
    app.router.add_post("/api/v1/actions/{id}/approve", write(routes.approve))
    app.router.add_post("/api/v1/actions/{id}/deny", write(routes.deny))
    app.router.add_post("/api/v1/freeze", write(routes.freeze))
    app.router.add_post("/api/v1/thaw", write(routes.thaw))
    app.router.add_post("/api/v1/breaker/reset", write(routes.reset_breaker))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handle_signals=False)
    await runner.setup()
    assert runner.server is not None
    try:
        listener = await asyncio.get_running_loop().create_server(_bounded(runner.server), host, port, backlog=128)
    except OSError as error:
        await runner.cleanup()
        raise _taken(listen, error) from None
    return Api(host=host, port=int(listener.sockets[0].getsockname()[1]), runner=runner, listener=listener)


def _bounded(server: web.Server) -> Callable[[], asyncio.BaseProtocol]:
    """A protocol for each connection; whoever has been connected longest goes where there would be too many.

    Somebody who asks does so at once and is among the newest; a flood of silent connections is not.
    """

    def connected() -> asyncio.BaseProtocol:
        for oldest in server.connections[: 1 - _MAX_CONNECTIONS]:
            oldest.force_close()
        return server()

    return connected


class _Routes:
    """The handlers; all state is the backend's."""

    def __init__(self, backend: Backend, metrics: AgentMetrics) -> None:
        self._backend = backend
        self._metrics = metrics

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = encode(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def status(self, request: web.Request) -> web.Response:
        return _json(self._backend.status())

    async def alerts(self, request: web.Request) -> web.Response:
        return _json({"alerts": self._backend.alerts()})

    async def rules(self, request: web.Request) -> web.Response:
        return _json({"rules": self._backend.rules()})

    async def incidents(self, request: web.Request) -> web.Response:
        text = request.query.get("limit", "100")
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_INCIDENTS:
            raise UsageError("limit is not a number from 1 to 1000", remedy="write ?limit=100")
        return _json({"incidents": self._backend.incidents(int(text))})

    async def incident(self, request: web.Request) -> web.Response:
        return _json(self._known_incident(request.match_info["id"]))

    async def approve(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _json(await self._backend.approve(self._action_id(request), body.actor))

    async def deny(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _json(await self._backend.deny(self._action_id(request), body.actor))

    async def freeze(self, request: web.Request) -> web.Response:
        await self._backend.freeze((await _body(request)).actor)
        return _json({"frozen": True})

    async def thaw(self, request: web.Request) -> web.Response:
        await self._backend.thaw((await _body(request)).actor)
        return _json({"frozen": False})

    async def reset_breaker(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _json({"reset": await self._backend.reset_breaker(body.server, body.actor)})

    def _action_id(self, request: web.Request) -> str:
        """The action named, or the one that waits in the incident named."""
        given = request.match_info["id"]
        if not given.startswith("i-"):
            return given
        waiting = pending(self._known_incident(given).actions)
        if not waiting:
            raise UsageError(
                f"incident {given} has 0 actions that wait for approval",
                remedy=f"see what was decided with `agent incident {given}`",
            )
        if len(waiting) > 1:
            ids = ", ".join(action.id for action in waiting)
            raise UsageError(
                f"incident {given} has {len(waiting)} actions that wait for approval",
                remedy=f"name one action; waiting: {ids}",
            )
        return waiting[0].id

    def _known_incident(self, incident_id: str) -> Incident:
        incident = self._backend.incident(incident_id)
        if incident is None:
            raise NotFoundError("there is no incident of that id", remedy="see `agent incidents`")
        return incident


def pending(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """The actions that wait for a person."""
    return tuple(action for action in actions if action.state.value == "awaiting-approval")


async def _body(request: web.Request) -> _Body:
    raw = await request.read()
    if not raw.strip():
        return _Body()
    try:
        body = msgspec.json.decode(raw, type=_Body)
    except msgspec.DecodeError as error:
        raise UsageError(f"the body does not hold: {error}", remedy='send {"actor": "NAME"} or nothing') from None
    if not body.actor.isprintable() or not 1 <= len(body.actor) <= _MAX_ACTOR:
        raise UsageError("actor must be 1 to 64 printable characters", remedy='send {"actor": "NAME"}')
    return body


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError("is not HOST:PORT", where=f"--listen {listen}", remedy="write 127.0.0.1:9911")
    return host.strip("[]"), int(port)


def _taken(listen: str, error: OSError) -> AgentError:
    if error.errno == errno.EADDRINUSE:
        message, remedy = "the address is in use", "another watcher runs; stop it or choose another --listen"
    else:
        message = f"cannot listen: {error.strerror or error}"
        remedy = "choose an address of this machine and a free port for --listen"
    return AgentError(message, where=listen, remedy=remedy)
