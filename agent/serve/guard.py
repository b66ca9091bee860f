"""Who may ask what: the Host header, the bearer token, and the one shape of every error.

In: a request. Out: the handler's answer, or ``{"error": {code, message, remedy}}``. A web page that
resolves its own name to 127.0.0.1 (DNS rebinding) carries a foreign Host and is refused; a write needs
the token of the run-dir, compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from agent.errors import AgentError, ConflictError, NotFoundError, UsageError

Token = Callable[[], str | None]
"""Read at each write, since the launcher may make its token after the watcher began."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)
_TOKEN_REMEDY = "send `Authorization: Bearer TOKEN` with the content of the run-dir's file `token`"


def error_response(status: int, code: str, message: str, remedy: str | None) -> web.Response:
    """The one shape of an error."""
    body = {"error": {"code": code, "message": message, "remedy": remedy}}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response(body, status=status, headers=headers)


def is_loopback(host: str) -> bool:
    """``localhost`` and every address of 127/8 and ::1."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def errors_as_json(loopback_only: bool) -> Middleware:
    """The middleware around every handler."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if loopback_only and not is_loopback(_host_name(request.host)):
            return error_response(
                403, "bad-host", "this API answers to its loopback name only", "ask 127.0.0.1 or localhost"
            )
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _http_error(error)
        except AgentError as error:
            return error_response(*_status(error), error.message, error.remedy)
        except Exception:
            _log.exception("%r %r failed", request.method, request.path)
            return error_response(500, "internal", "the request failed", "see the agent's own log")

    return middleware


def authorised(token: Token) -> Callable[[Handler], Handler]:
    """Wrap a writing handler; without a token configured every write is refused."""

    def wrap(handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            expected = token()
            if expected is None:
                return error_response(
                    403,
                    "no-token",
                    "this watcher has no token, so it takes no orders",
                    "orders are taken by a watcher of a launcher: agent run, or agent watch --run-dir DIR",
                )
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected.encode())
            if scheme.lower() != "bearer" or not same:
                return error_response(401, "unauthorised", "the token is missing or wrong", _TOKEN_REMEDY)
            return await handler(request)

        return guarded

    return wrap


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].strip("[]")
    return host.partition(":")[0]


def _status(error: AgentError) -> tuple[int, str]:
    if isinstance(error, NotFoundError):
        return 404, "not-found"
    if isinstance(error, ConflictError):
        return 409, "conflict"
    if isinstance(error, UsageError):
        return 400, "bad-request"
    return 503, str(getattr(error, "code", "failed"))


def _http_error(error: web.HTTPException) -> web.StreamResponse:
    remedies = {
        404: "GET /api/v1/status, /api/v1/incidents, /api/v1/incidents/ID, /metrics",
        405: "GET reads, POST writes",
        413: "send a small JSON object",
    }
    code = error.reason.lower().replace(" ", "-")
    response = error_response(error.status, code, error.reason, remedies.get(error.status))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
