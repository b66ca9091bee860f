"""The OpenAI endpoints of the stand-in: completions and chat, streamed or not, with vLLM's shapes and errors.

In come parsed HTTP requests; out go answers whose text is made from the prompt (the same prompt always gives
the same words) and whose pace is the engine's. Errors carry vLLM's bodies and texts. A stream whose engine
dies ends as vLLM's does: status 200, an error event, ``[DONE]``; a plain request gets 500.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from agent.sim.asks import Ask, Checker, internal_error
from agent.sim.client import EngineClient, EngineDead, Generation
from agent.sim.http import Reply, Request
from agent.sim.metrics import Registry
from agent.sim.options import Settings

SENTENCE = (
    "the server reads a prompt and answers it one token at time while many others wait their turn in queue "
    "because memory of card is finite every block counts step follows until last word"
)
WORDS = tuple(SENTENCE.split())


class OpenAi:
    """Handlers of ``/v1/completions`` and ``/v1/chat/completions``."""

    def __init__(
        self, settings: Settings, client: EngineClient, metrics: Registry, on_stream_error: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._client = client
        self._checker = Checker(settings, metrics)
        self._on_stream_error = on_stream_error

    def models(self) -> dict[str, object]:
        """The document of ``/v1/models``."""
        cards: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": self._settings.model,
                "parent": None,
                "max_model_len": self._settings.max_model_len,
                "permission": [],
            }
            for name in self._settings.served
        ]
        return {"object": "list", "data": cards}

    async def complete(self, request: Request, reply: Reply, reader: asyncio.StreamReader, *, chat: bool) -> None:
        """One POST; raises `ApiError` for what is answered with an error."""
        ask = self._checker.check(request.body, chat=chat, open_requests=len(self._client.open))
        try:
            generations = [
                self._client.submit(f"{ask.name}-{i}", n, ask.max_tokens, hashes, seed, streamed=ask.stream)
                for i, (n, hashes, seed) in enumerate(ask.prompts)
            ]
        except (EngineDead, RuntimeError) as error:
            raise internal_error(error) from None
        try:
            if ask.stream:
                await self._stream(ask, generations, reply, reader)
            else:
                await self._whole(ask, generations, reply, reader)
        finally:
            self._client.abort(generations)

    # --- answers

    async def _whole(self, ask: Ask, generations: list[Generation], reply: Reply, reader: asyncio.StreamReader) -> None:
        for generation in generations:
            while generation.reason is None and not generation.dead:
                try:
                    await asyncio.wait_for(generation.changed.wait(), 1.0)
                except asyncio.TimeoutError:
                    if reader.at_eof():
                        raise ConnectionResetError from None
        if any(g.dead for g in generations):
            raise internal_error(EngineDead())
        choices = [_choice(ask, i, g) for i, g in enumerate(generations)]
        document = {**_envelope(ask, chunk=False), "choices": choices, "service_tier": None}
        document.update(system_fingerprint=None, usage=_usage(generations), kv_transfer_params=None)
        await reply.json(200, document)

    async def _stream(
        self, ask: Ask, generations: list[Generation], reply: Reply, reader: asyncio.StreamReader
    ) -> None:
        await reply.begin()
        if ask.chat:
            for i, _ in enumerate(generations):
                await reply.event(_chunk(ask, i, {"role": "assistant", "content": ""}, None))
        queue: asyncio.Queue[tuple[int, str, str | None] | None] = asyncio.Queue()
        tasks = [asyncio.ensure_future(_follow(i, g, queue)) for i, g in enumerate(generations)]
        left = len(tasks)
        try:
            while left:
                item = await queue.get()
                if item is None:
                    await self._stream_died(reply)
                    return
                index, text, reason = item
                left -= reason is not None
                if reader.at_eof():
                    raise ConnectionResetError
                await reply.event(_chunk(ask, index, {"content": text} if ask.chat else text, reason))
        finally:
            for task in tasks:
                task.cancel()
        if ask.include_usage:
            await reply.event(json.dumps({**_envelope(ask, chunk=True), "choices": [], "usage": _usage(generations)}))
        await reply.event("[DONE]")
        await reply.end()

    async def _stream_died(self, reply: Reply) -> None:
        self._on_stream_error()
        await reply.event(json.dumps(internal_error(EngineDead()).body))
        await reply.event("[DONE]")
        await reply.end()


async def _follow(index: int, generation: Generation, queue: asyncio.Queue[tuple[int, str, str | None] | None]) -> None:
    """Turn a generation's progress into stream items; None once the engine is dead."""
    sent = 0
    while True:
        await generation.changed.wait()
        generation.changed.clear()
        if generation.dead:
            queue.put_nowait(None)
            return
        text = _words(generation.seed, sent, generation.tokens)
        sent = generation.tokens
        queue.put_nowait((index, text, generation.reason))
        if generation.reason is not None:
            return


def _words(seed: int, start: int, end: int) -> str:
    """Tokens number ``start`` to ``end`` of the answer to a prompt."""
    return "".join(" " + WORDS[(seed + i * 7 + i // 11) % len(WORDS)] for i in range(start, end))


def _envelope(ask: Ask, *, chunk: bool) -> dict[str, object]:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if ask.chat else "text_completion"
    return {"id": ask.name, "object": kind, "created": ask.created, "model": ask.model}


def _choice(ask: Ask, index: int, generation: Generation) -> dict[str, object]:
    text = _words(generation.seed, 0, generation.tokens)
    tail: dict[str, object] = {"logprobs": None, "finish_reason": generation.reason, "stop_reason": None}
    if not ask.chat:
        return {"index": index, "text": text, **tail, "token_ids": None, "prompt_logprobs": None}
    message: dict[str, object] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "tool_calls": [],
        "reasoning": None,
    }
    return {"index": index, "message": message, **tail, "token_ids": None}


def _chunk(ask: Ask, index: int, content: object, reason: str | None) -> str:
    part = {"delta": content} if ask.chat else {"text": content}
    choice = {"index": index, **part, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return json.dumps({**_envelope(ask, chunk=True), "choices": [choice]})


def _usage(generations: list[Generation]) -> dict[str, object]:
    prompt = sum(g.prompt for g in generations)
    made = sum(g.tokens for g in generations)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": None,
    }
