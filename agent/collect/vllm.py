"""The vLLM server as its HTTP side shows it: ``/health``, ``/metrics``, and one small request as a proof.

In: a base URL (TCP or unix socket, TLS, root path, API key). Out: a :class:`Health`, a :class:`Scrape` or a
:class:`~agent.model.NotMeasured` with the reason. Nothing here raises on what a server answers: a server that is
down, hung, or no vLLM at all is a reading. No prompt text of users ever passes through: the proof request is a
fixed single token.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import json
import os
import ssl
from collections.abc import Mapping
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp
import msgspec

from agent.collect.scrape import MetricsPage, Scrape, bounded, is_local, unmeasured
from agent.model import Clock, NotMeasured

UNAUTHORIZED = (401, 403)
NOBODY_LISTENS = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOENT})
REQUEST_LIMIT = 2**20


class HealthKind(str, enum.Enum):
    """What ``/health`` said. vLLM answers 503 when its engine died, 200 even while it hangs (v0.32)."""

    OK = "ok"
    ENGINE_DEAD = "engine-dead"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    OTHER = "other"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of ``/health`` with the monotonic time at which it was complete."""

    kind: HealthKind
    detail: str
    at: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the proof request was answered, and what was seen.

    None: the server lives but wants an API key that is not known here, so nothing was proven and nothing refuted.
    """

    answered: bool | None
    detail: str


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server. ``url`` is ``http(s)://host:port[/root]`` or ``unix:/path.sock[:/root]``."""

    url: str
    api_key: str | None = None
    tls_ca: str | None = None
    tls_verify: bool = True


class VllmClient:
    """A keep-alive client of one server; use as an async context manager."""

    def __init__(self, target: Target, clock: Clock, *, timeout: float = 2.0) -> None:
        self._target = target
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._base, self._socket = _split(target.url)
        local = self._socket is not None or is_local(self._base)
        self._metrics = MetricsPage(f"{self._base}/metrics", clock, local=local)
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """The server's address for people."""
        return self._target.url

    async def __aenter__(self) -> VllmClient:
        headers = {"Accept-Encoding": "identity"}
        if self._target.api_key:
            headers["Authorization"] = f"Bearer {self._target.api_key}"
        self._session = aiohttp.ClientSession(
            connector=self._connector(), headers=headers, timeout=self._timeout, auto_decompress=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Requests under way end as readings ("connection broke"), later ones too."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connector(self) -> aiohttp.BaseConnector:
        if self._socket is not None:
            return aiohttp.UnixConnector(path=self._socket)
        if not self._base.startswith("https:"):
            return aiohttp.TCPConnector(limit=4)
        context = ssl.create_default_context(cafile=self._target.tls_ca)
        if not self._target.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return aiohttp.TCPConnector(limit=4, ssl=context)

    async def health(self) -> Health:
        """Ask ``/health`` once."""
        kind, detail = await self._health()
        return Health(kind=kind, detail=detail, at=self._clock.monotonic())

    async def _health(self) -> tuple[HealthKind, str]:
        try:
            async with self._open().get(f"{self._base}/health") as response:
                if response.status == 200 and response.content_type == "text/html":
                    # vLLM answers with an empty body (vllm/entrypoints/serve/instrumentator/health.py).
                    return HealthKind.OTHER, "/health answered 200 with a web page: is this a vLLM server?"
                if response.status == 200:
                    return HealthKind.OK, "/health answered 200"
                if response.status == 503:
                    return HealthKind.ENGINE_DEAD, "/health answered 503: the engine is dead"
                return HealthKind.OTHER, f"/health answered {response.status}: is this a vLLM server?"
        except aiohttp.ClientSSLError as error:
            return HealthKind.OTHER, f"no connection: {_reason(error)}"
        except aiohttp.ClientConnectorError as error:
            # Only a closed port says that no process is there; a network that is down says nothing of the server.
            kind = HealthKind.REFUSED if _errno(error) in NOBODY_LISTENS else HealthKind.OTHER
            return kind, f"no connection: {_reason(error)}"
        except asyncio.TimeoutError:
            return HealthKind.TIMEOUT, f"/health gave no answer within {self._timeout.total:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return HealthKind.REFUSED, f"connection broke: {_reason(error)}"

    async def scrape(self) -> Scrape | NotMeasured:
        """One GET of ``/metrics``; the answer is not read here."""
        try:
            return await self._metrics.get(self._open())
        except asyncio.TimeoutError:
            return unmeasured(f"/metrics gave no answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return unmeasured(f"no answer from {self._base}/metrics: {_reason(error)}")

    async def ask(self, *, timeout: float = 60.0) -> Answer:
        """Send one single-token request on the first endpoint that this server's task has."""
        model = await self._model()
        if isinstance(model, Answer):
            return model
        last = Answer(answered=False, detail="no endpoint for a small request was found")
        for path, body in _proof_requests(model):
            last, usable = await self._post(path, body, timeout)
            if usable:
                return last
        return last

    async def _model(self) -> str | Answer:
        try:
            async with self._open().get(f"{self._base}/v1/models") as response:
                if response.status in UNAUTHORIZED:
                    return _no_key("/v1/models", response.status)
                if response.status != 200:
                    return Answer(answered=False, detail=f"/v1/models answered {response.status}")
                data = json.loads(await bounded(response, REQUEST_LIMIT))
            return str(data["data"][0]["id"])
        except asyncio.TimeoutError:
            return Answer(answered=False, detail="/v1/models gave no answer")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(answered=False, detail=f"/v1/models: {_reason(error)}")
        except (ValueError, KeyError, IndexError, TypeError):
            return Answer(answered=False, detail="/v1/models answered something that is not a model list")

    async def _post(self, path: str, body: Mapping[str, object], timeout: float) -> tuple[Answer, bool]:
        """The answer, and whether the endpoint exists for this server's task."""
        began = self._clock.monotonic()
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._open().post(f"{self._base}{path}", json=body, timeout=limit) as response:
                await bounded(response, REQUEST_LIMIT)
                if response.status in UNAUTHORIZED:
                    return _no_key(path, response.status), True
                took = self._clock.monotonic() - began
                answer = Answer(
                    answered=response.status == 200,
                    detail=f"{path} answered {response.status} in {took:.2f} s",
                )
                return answer, response.status not in (400, 404, 405, 422, 501)
        except asyncio.TimeoutError:
            return Answer(answered=False, detail=f"{path} gave no answer within {timeout:g} s"), True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(answered=False, detail=f"{path}: {_reason(error)}"), True

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> tuple[int, bytes]:
        """Status and body (at most 1 MiB) of one request below the base address.

        Raises asyncio.TimeoutError, aiohttp.ClientError, OSError, and ValueError for a larger body.
        """
        limit = aiohttp.ClientTimeout(total=timeout)
        url = f"{self._base}{path}"
        async with self._open().request(method, url, json=body, headers=headers, timeout=limit) as response:
            return response.status, await bounded(response, REQUEST_LIMIT)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise aiohttp.ClientConnectionError("the client was closed")
        return self._session


def _split(url: str) -> tuple[str, str | None]:
    if url.startswith("unix:"):
        path, _, root = url[len("unix:") :].partition(":")
        return f"http://localhost{root.rstrip('/')}", path
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", None


def _proof_requests(model: str) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Generation first; embedding and pooling servers have no completions."""
    return (
        ("/v1/completions", {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}),
        (
            "/v1/chat/completions",
            {"model": model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1},
        ),
        ("/v1/embeddings", {"model": model, "input": "1"}),
        ("/pooling", {"model": model, "input": "1"}),
    )


def _reason(error: BaseException) -> str:
    """asyncio's own text names the address again; the errno says it shorter."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate is not accepted: {error.certificate_error}"
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLError):
        return f"TLS: {inner.reason or inner}"
    if isinstance(inner, OSError) and inner.errno is not None and inner.errno > 0:
        return os.strerror(inner.errno).lower()
    return str(inner) or type(inner).__name__


def _no_key(path: str, status: int) -> Answer:
    """vLLM asks for the key of ``--api-key`` on every path below /v1, never for /health and /metrics."""
    return Answer(answered=None, detail=f"{path} answered {status}: not measured; give the key as VLLM_API_KEY")


def _errno(error: aiohttp.ClientConnectorError) -> int | None:
    return error.os_error.errno
