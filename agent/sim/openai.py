"""The OpenAI endpoints of the stand-in: completions and chat, streamed or not, with vLLM's shapes and errors.

In come parsed HTTP requests; out go answers whose text is made from the prompt (the same prompt always gives
the same words) and whose pace is the engine's. Errors carry vLLM's bodies and texts. A stream whose engine
dies ends as vLLM's does: status 200, an error event, ``[DONE]``; a plain request gets 500.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from agent.sim.client import EngineClient, EngineDead, Generation
from agent.sim.http import Reply, Request
from agent.sim.metrics import Registry
from agent.sim.options import Settings

SENTENCE = (
    "the server reads a prompt and answers it one token at time while many others wait their turn in queue "
    "because memory of card is finite every block counts step follows until last word"
)
WORDS = tuple(SENTENCE.split())
CHARACTERS_A_TOKEN = 4
BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)


class ApiError(Exception):
    """An answer that is an error; ``type`` as in vLLM's ErrorResponse."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "BadRequestError", message, param)


def internal_error(error: Exception) -> ApiError:
    return ApiError(500, "InternalServerError", str(error))


@dataclass(frozen=True)
class Ask:
    """A checked request: prompts as (length in tokens, block hashes, seed)."""

    chat: bool
    model: str
    prompts: tuple[tuple[int, list[int], int], ...]
    max_tokens: int
    stream: bool
    include_usage: bool
    name: str
    created: int


class OpenAi:
    """Handlers of ``/v1/completions`` and ``/v1/chat/completions``."""

    def __init__(
        self, settings: Settings, client: EngineClient, metrics: Registry, on_stream_error: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
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

    async def complete(
        self, request: Request, reply: Reply, reader: asyncio.StreamReader, *, chat: bool
    ) -> None:
        """One POST; raises `ApiError` for what is answered with an error."""
        ask = self._check(request, chat)
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

    # --- checks

    def _check(self, request: Request, chat: bool) -> Ask:
        body = _parse(request.body)
        model = body.get("model", self._settings.served[0])
        if model not in self._settings.served:
            raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        prompts = _chat_prompts(body) if chat else _prompts(body)
        copies = _integer(body, "n", 1)
        if not 1 <= copies <= 128:
            raise bad_request(f"n must be at least 1, got {copies}.", "n")
        _check_temperature(body)
        measured = tuple(self._measure(prompt, copy) for prompt in prompts for copy in range(copies))
        limit = self._max_tokens(body, max(n for n, _, _ in measured), chat)
        self._admit(len(measured))
        options = body.get("stream_options")
        usage = bool(options.get("include_usage")) if isinstance(options, dict) else False
        prefix = "chatcmpl-" if chat else "cmpl-"
        stream = bool(body.get("stream"))
        return Ask(
            chat, str(model), measured, limit, stream, usage, prefix + uuid4().hex[:16], int(time.time())
        )

    def _measure(self, prompt: str | list[int], copy: int) -> tuple[int, list[int], int]:
        """Length in tokens, hashes of the full blocks (each over all before it), seed of the answer."""
        if isinstance(prompt, str):
            data = prompt.encode()
            length = max(1, -(-len(data) // CHARACTERS_A_TOKEN))
            width = self._settings.block_size * CHARACTERS_A_TOKEN
        else:
            data = b"".join(token.to_bytes(8, "little", signed=True) for token in prompt)
            length, width = len(prompt), self._settings.block_size * 8
        hashes, running = [], 0
        for end in range(width, len(data) + 1, width):
            running = zlib.crc32(data[end - width : end], running)
            hashes.append(running)
        return length, hashes, zlib.crc32(data) + copy

    def _max_tokens(self, body: dict[str, object], prompt: int, chat: bool) -> int:
        longest = self._settings.max_model_len
        key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        if prompt > longest - 1:
            raise bad_request(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains at "
                "least "
                f"{prompt} input tokens, which exceeds this limit. Please reduce the length of the input "
                "prompt. "
                f"(parameter=input_tokens, value={prompt})",
                "input_tokens",
            )
        if body.get(key) is None:
            return min(16, longest - prompt) if not chat else min(64, longest - prompt)
        wanted = _integer(body, key, 16)
        if wanted < 1:
            raise bad_request(f"{key} must be at least 1, got {wanted}.", key)
        if wanted > longest:
            raise bad_request(
                f"max_tokens={wanted} cannot be greater than max_model_len={longest}", "max_tokens"
            )
        return min(wanted, longest - prompt)

    def _admit(self, count: int) -> None:
        """vLLM's own load shedding: 503 above --max-num-queued-reqs."""
        limit = self._settings.max_num_queued_reqs
        if limit is not None and len(self._client.open) + count > limit:
            self._metrics.add("vllm:admission_rejections_total", reason="max_num_queued_reqs")
            raise ApiError(503, "Service Unavailable", BUSY)

    # --- answers

    async def _whole(
        self, ask: Ask, generations: list[Generation], reply: Reply, reader: asyncio.StreamReader
    ) -> None:
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
            await reply.event(
                json.dumps({**_envelope(ask, chunk=True), "choices": [], "usage": _usage(generations)})
            )
        await reply.event("[DONE]")
        await reply.end()

    async def _stream_died(self, reply: Reply) -> None:
        self._on_stream_error()
        await reply.event(json.dumps(internal_error(EngineDead()).body))
        await reply.event("[DONE]")
        await reply.end()


async def _follow(
    index: int, generation: Generation, queue: asyncio.Queue[tuple[int, str, str | None] | None]
) -> None:
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


def _parse(body: bytes) -> dict[str, object]:
    try:
        document = json.loads(body or b"null")
    except ValueError as error:
        raise bad_request(
            f"[{{'type': 'json_invalid', 'loc': ('body',), 'msg': 'JSON decode error: {error}'}}]"
        ) from None
    if not isinstance(document, dict):
        raise bad_request("[{'type': 'missing', 'loc': ('body',), 'msg': 'Field required', 'input': None}]")
    return document


def _integer(body: dict[str, object], key: str, default: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(
            f"[{{'type': 'int_type', 'loc': ('body', '{key}'), 'msg': 'Input should be a valid integer'}}]"
        )
    return value


def _check_temperature(body: dict[str, object]) -> None:
    value = body.get("temperature")
    if isinstance(value, int | float) and value < 0:
        raise bad_request(f"temperature must be non-negative, got {value}.", "temperature")


def _prompts(body: dict[str, object]) -> list[str | list[int]]:
    """The ``prompt`` field: a text, a list of texts, a list of token ids or a list of such lists."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return list(prompt)
        if all(isinstance(item, int) for item in prompt):
            return [prompt]
        if all(isinstance(item, list) and item and all(isinstance(t, int) for t in item) for item in prompt):
            return list(prompt)
    raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def _chat_prompts(body: dict[str, object]) -> list[str | list[int]]:
    """The messages as one text, as a chat template would make it."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise bad_request(
            "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]", "messages"
        )
    parts = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        parts.append(f"<|{message.get('role', 'user')}|>{content}")
    return ["".join(parts)]
