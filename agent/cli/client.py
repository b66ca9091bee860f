"""How the commands speak to a watcher: its API first, its journal for reading when nobody answers.

In: ``--api``, ``--run-dir``, ``--state-dir`` and the environment. Out: the model's structs, or an error
with a remedy. Standard library for the wire, so that a command starts in tens of milliseconds; proxies of
the environment are not used, since the watcher is on this machine.
"""

from __future__ import annotations

import getpass
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.errors import AgentError, NotFoundError, UsageError

DEFAULT_API = "http://127.0.0.1:9911"
DEFAULT_RUN_DIR = Path("/run/vllm-agent/default")
_TIMEOUT_SECONDS = 10
_MAX_ANSWER = 64 << 20

F = TypeVar("F", bound=Callable[..., Any])


class NoWatcher(AgentError):
    """Nothing answers at the API's address."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A watcher never redirects, and what else answers there must not send the token on to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None: the answer counts as an error."""


class ApiClient:
    """A watcher's API. ``token`` is needed for writing only."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Raises UsageError where ``url`` is no http(s) URL."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError("is not a URL", where=f"--api {url}", remedy="write http://127.0.0.1:9911")
        self.url = url.rstrip("/")
        self._token = token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def get(self, path: str) -> bytes:
        """The body of a GET. Raises NoWatcher, NotFoundError, AgentError."""
        return self._send(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Mapping[str, object]) -> bytes:
        """The body of the answer. Raises as :meth:`get`."""
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers=headers, method="POST"
        )
        return self._send(request)

    def _send(self, request: urllib.request.Request) -> bytes:
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                body: bytes = answer.read(_MAX_ANSWER)
                if "json" not in answer.headers.get("Content-Type", ""):
                    raise _not_a_watcher(self.url)
                return body
        except urllib.error.HTTPError as error:
            raise _refusal(self.url, error) from None
        except (urllib.error.URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise NoWatcher(
                f"no watcher answers: {reason}",
                where=self.url,
                remedy="start `agent watch` or `agent run`, or name its address with --api",
            ) from None


def find_token(run_dir: Path | None, environ: Mapping[str, str]) -> str | None:
    """The token of ``--run-dir``, $VLLM_AGENT_TOKEN_FILE, $VLLM_AGENT_RUN_DIR or the default run-dir."""
    if run_dir is not None:
        path, named = run_dir / "token", True
    elif file := environ.get("VLLM_AGENT_TOKEN_FILE"):
        path, named = Path(file), True
    else:
        path, named = find_run_dir(None, environ) / "token", "VLLM_AGENT_RUN_DIR" in environ
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        if not named:
            return None
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"the token cannot be read: {reason}",
            where=str(path),
            remedy="name the launcher's run-dir with --run-dir",
        ) from None
    if not token or not token.isprintable():
        raise UsageError("holds no token", where=str(path), remedy="restart the launcher, which writes it")
    return token


def find_run_dir(run_dir: Path | None, environ: Mapping[str, str]) -> Path:
    """``--run-dir``, else $VLLM_AGENT_RUN_DIR, else the default."""
    return run_dir or Path(environ.get("VLLM_AGENT_RUN_DIR") or DEFAULT_RUN_DIR)


def actor() -> str:
    """Who gives this order, for the journal."""
    try:
        return f"cli:{getpass.getuser()}"[:64]
    except (KeyError, OSError):
        return f"cli:uid-{os.getuid()}"


def notice(text: str) -> None:
    """Beside the answer, on standard error."""
    click.echo(f"agent: {text}", err=True)


def api_option(function: F) -> F:
    """``--api``."""
    return click.option(
        "--api",
        envvar="VLLM_AGENT_API",
        default=DEFAULT_API,
        show_default=True,
        help="Address of the watcher's API.",
    )(function)


def run_dir_option(function: F) -> F:
    """``--run-dir``, whose token allows writing."""
    return click.option("--run-dir", type=click.Path(path_type=Path), help="The launcher's run-dir (for its token).")(
        function
    )


def output_option(function: F) -> F:
    """``--output text|json``."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the answer.",
    )(function)


def _refusal(url: str, error: urllib.error.HTTPError) -> AgentError:
    try:
        told = json.loads(error.read(1 << 20))["error"]
        message, remedy = str(told["message"]), told.get("remedy")
    except (ValueError, KeyError, TypeError, AttributeError, OSError, HTTPException):
        return _not_a_watcher(url)
    kinds = {404: NotFoundError, 400: UsageError}
    return kinds.get(error.code, AgentError)(message, remedy=None if remedy is None else str(remedy))


def _not_a_watcher(url: str) -> AgentError:
    return AgentError(
        "what answers there is not the agent's API", where=url, remedy="name the watcher's address with --api"
    )
