"""What clients ask of the OpenAI endpoints: bodies checked as vLLM checks them.

In come the bytes of a POST; out goes an `Ask`, or `ApiError` with vLLM's status, body and text. Prompts
become lengths and block hashes here, so that the engine never sees text. Four characters are one token.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass
from uuid import uuid4

from agent.sim.metrics import Registry
from agent.sim.options import Settings

CHARACTERS_A_TOKEN = 4
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


class ApiError(Exception):
    """An answer that is an error; ``type`` as in vLLM's ErrorResponse."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """vLLM's answer to a request that it refuses: 400."""
    return ApiError(400, "BadRequestError", message, param)


def internal_error(error: Exception) -> ApiError:
    """vLLM's answer when the engine failed: 500."""
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


class Checker:
    """Checks bodies against one server's settings."""

    def __init__(self, settings: Settings, metrics: Registry) -> None:
        self._settings = settings
        self._metrics = metrics

    def check(self, body: bytes, *, chat: bool, open_requests: int) -> Ask:
        """One request's body to an `Ask`; ``open_requests`` are those that wait or run already."""
        document = _parse(body)
        return self._ask(document, chat, open_requests)

    def _ask(self, body: dict[str, object], chat: bool, open_requests: int) -> Ask:
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
        self._admit(open_requests + len(measured))
        options = body.get("stream_options")
        usage = bool(options.get("include_usage")) if isinstance(options, dict) else False
        prefix = "chatcmpl-" if chat else "cmpl-"
        stream = bool(body.get("stream"))
        return Ask(chat, str(model), measured, limit, stream, usage, prefix + uuid4().hex[:16], int(time.time()))

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
            raise bad_request(f"max_tokens={wanted} cannot be greater than max_model_len={longest}", "max_tokens")
        return min(wanted, longest - prompt)

    def _admit(self, count: int) -> None:
        """vLLM's own load shedding: 503 above --max-num-queued-reqs."""
        limit = self._settings.max_num_queued_reqs
        if limit is not None and count > limit:
            self._metrics.add("vllm:admission_rejections_total", reason="max_num_queued_reqs")
            raise ApiError(503, "Service Unavailable", BUSY)


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
        raise bad_request("[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]", "messages")
    parts = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        parts.append(f"<|{message.get('role', 'user')}|>{content}")
    return ["".join(parts)]
