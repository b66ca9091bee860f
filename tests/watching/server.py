"""A vLLM server of a few lines: /health, /metrics, /v1/models, /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web


@dataclass
class Answers:
    """What it answers now; ``key`` is asked for below /v1, as vLLM does; ``series`` are more lines of /metrics;
    a ``stuck`` engine answers no completion; ``scrapes`` and ``healths`` count.
    """

    url: str = ""
    health: int = 200
    key: str | None = None
    tokens: int = 0
    series: str = ""
    stuck: bool = False
    scrapes: int = 0
    healths: int = 0
    port: int = 0


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[Answers]:
    answers = Answers()

    async def health(_: web.Request) -> web.Response:
        answers.healths += 1
        return web.Response(status=answers.health)

    async def metrics(_: web.Request) -> web.Response:
        answers.scrapes += 1
        return web.Response(text=f'vllm:generation_tokens_total{{engine="0"}} {answers.tokens}\n{answers.series}')

    def allowed(request: web.Request) -> bool:
        return answers.key is None or request.headers.get("Authorization") == f"Bearer {answers.key}"

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]}, status=200 if allowed(request) else 401)

    async def completions(request: web.Request) -> web.Response:
        if answers.stuck:
            await asyncio.sleep(3600)
        answers.tokens += 1
        return web.json_response({}, status=200 if allowed(request) else 401)

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/metrics", metrics), web.get("/v1/models", models)])
    app.add_routes([web.post("/v1/completions", completions)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        answers.port = int(runner.addresses[0][1])
        answers.url = f"http://127.0.0.1:{answers.port}"
        yield answers
    finally:
        await runner.cleanup()
