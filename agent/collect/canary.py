"""One small request as a question to an engine: does it still answer?

In: a way to send a request, an engine label, the server's role. Out: a :class:`CanaryResult`, always; nothing is
raised. The request is one fixed token, so no user's text passes and almost nothing is computed. What the server's task
is (generation, chat, embedding, pooling) is learned once and remembered; a server that is paused is not asked, because
the request would wait in it for ever.

The answer proves a step of the engine. No answer proves nothing by itself: the request waits behind whatever the
engine computes, a long prefill too.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp
import msgspec

from agent.model import Clock

RANK_HEADER = "X-data-parallel-rank"
TIMEOUT_SECONDS = 10.0
ASIDE_SECONDS = 2.0
UNAUTHORIZED = (401, 403)
# What vLLM answers where this server's task lacks the endpoint, or where the body does not suit the model.
UNSUITED = (400, 404, 405, 415, 422, 501)


class CanaryOutcome(str, enum.Enum):
    """Label ``outcome`` of ``vllm_agent_canary_requests_total``."""

    ANSWERED = "answered"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    NOT_SENT = "not-sent"


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one canary ended; times are monotonic seconds. ``lasting``: asking again soon is no use."""

    engine: str
    outcome: CanaryOutcome
    detail: str
    sent_at: float
    ended_at: float
    paused: bool | None = None
    lasting: bool = False


class Requester(Protocol):
    """The part of :class:`agent.collect.VllmClient` that a canary needs."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> tuple[int, bytes]:
        """Status and body; raises asyncio.TimeoutError, aiohttp.ClientError, OSError, ValueError."""
        ...


class Canary:
    """The canaries of one server's process; make a new one for a new start."""

    def __init__(self, client: Requester, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._model: str | None = None
        self._suited: tuple[str, Mapping[str, Any]] | None = None
        self._no_pause = False

    async def paused(self) -> bool | None:
        """``/is_paused`` (only with VLLM_SERVER_DEV_MODE=1, else 404: then it cannot be paused over HTTP).

        None: it did not say, which is no news of a pause.
        """
        if self._no_pause:
            return False
        try:
            status, data = await self._client.request("GET", "/is_paused", timeout=ASIDE_SECONDS)
            if status in (404, 405):
                self._no_pause = True
                return False
            return bool(json.loads(data)["is_paused"]) if status == 200 else None
        except (asyncio.TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
            return None

    async def ask(self, engine: str, *, several: bool = False, timeout: float = TIMEOUT_SECONDS) -> CanaryResult:
        """Send one canary to ``engine`` and wait at most ``timeout`` seconds for its token; with ``several`` engines
        the request names its data-parallel rank.
        """
        sent = self._clock.monotonic()
        paused = await self.paused()
        if paused:
            return self._end(engine, sent, CanaryOutcome.NOT_SENT, "the server is paused", paused=True)
        named = await self._name()
        if isinstance(named, tuple):
            return self._end(engine, sent, *named, paused=paused)
        headers = {RANK_HEADER: engine} if several else {}
        for path, body in (self._suited,) if self._suited else _questions(named):
            outcome, detail = await self._post(path, body, headers, timeout)
            if outcome is not None:
                if outcome is CanaryOutcome.ANSWERED:
                    self._suited = (path, body)
                lasting = outcome is CanaryOutcome.NOT_SENT
                return self._end(engine, sent, outcome, detail, paused=paused, lasting=lasting)
        self._suited = None
        reason = "this server has no endpoint for a small request"
        return self._end(engine, sent, CanaryOutcome.NOT_SENT, reason, paused=paused, lasting=True)

    async def _name(self) -> str | tuple[CanaryOutcome, str]:
        """The base model's name, asked once."""
        if self._model is not None:
            return self._model
        try:
            status, data = await self._client.request("GET", "/v1/models", timeout=ASIDE_SECONDS)
            if status in UNAUTHORIZED:
                return CanaryOutcome.NOT_SENT, _no_key("/v1/models", status)
            if status != 200:
                return CanaryOutcome.REFUSED, f"/v1/models answered {status}"
            self._model = str(json.loads(data)["data"][0]["id"])
            return self._model
        except asyncio.TimeoutError:
            return CanaryOutcome.NOT_SENT, f"/v1/models gave no answer within {ASIDE_SECONDS:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return CanaryOutcome.REFUSED, f"/v1/models: {type(error).__name__}"
        except (ValueError, KeyError, IndexError, TypeError):
            return CanaryOutcome.NOT_SENT, "/v1/models answered something that is not a model list"

    async def _post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: float
    ) -> tuple[CanaryOutcome | None, str]:
        """None: this endpoint is not for this server."""
        began = self._clock.monotonic()
        try:
            status, _ = await self._client.request("POST", path, body=body, headers=headers, timeout=timeout)
        except asyncio.TimeoutError:
            return CanaryOutcome.TIMEOUT, f"{path} gave no answer within {timeout:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return CanaryOutcome.REFUSED, f"{path}: {type(error).__name__}"
        if status == 200:
            return CanaryOutcome.ANSWERED, f"{path} answered in {self._clock.monotonic() - began:.2f} s"
        if status in UNAUTHORIZED:
            return CanaryOutcome.NOT_SENT, _no_key(path, status)
        return (None, "") if status in UNSUITED else (CanaryOutcome.REFUSED, f"{path} answered {status}")

    def _end(
        self,
        engine: str,
        sent: float,
        outcome: CanaryOutcome,
        detail: str,
        *,
        paused: bool | None = None,
        lasting: bool = False,
    ) -> CanaryResult:
        return CanaryResult(
            engine=engine,
            outcome=outcome,
            detail=detail,
            sent_at=sent,
            ended_at=self._clock.monotonic(),
            paused=paused,
            lasting=lasting,
        )


def _no_key(path: str, status: int) -> str:
    return f"{path} answered {status}: give the key as VLLM_API_KEY"


def _questions(model: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Generation first; a model without a tokenizer takes token ids only; embedding servers have no completions."""
    small = {"model": model, "max_tokens": 1, "temperature": 0}
    return (
        ("/v1/completions", {**small, "prompt": "1"}),
        ("/v1/completions", {**small, "prompt": [1]}),
        ("/v1/chat/completions", {**small, "messages": [{"role": "user", "content": "1"}]}),
        ("/v1/embeddings", {"model": model, "input": "1"}),
        ("/pooling", {"model": model, "input": "1"}),
    )
