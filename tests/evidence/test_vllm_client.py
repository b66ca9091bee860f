"""The HTTP side of a server, healthy, dead, hung, absent, or something else altogether."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from agent.collect import HealthKind, Scrape, Target, VllmClient
from agent.model import NotMeasured, SystemClock

METRICS = 'vllm:generation_tokens_total{engine="0"} 12\nvllm:generation_tokens_total{engine="1"} 30\n'
Handler = Callable[[web.Request], "asyncio.Future[web.StreamResponse]"]


@asynccontextmanager
async def running(routes: dict[str, object], socket: Path | None = None) -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site: web.BaseSite
    if socket is not None:
        site = web.UnixSite(runner, str(socket))
        await site.start()
        url = f"unix:{socket}"
    else:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        url = f"http://{host}:{port}"
    try:
        yield url
    finally:
        await runner.cleanup()


def answer(status: int = 200, text: str = "", kind: str = "text/plain") -> object:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type=kind)

    return handler


async def never(_: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


def client(url: str, **more: object) -> VllmClient:
    return VllmClient(Target(url=url, **more), SystemClock(), timeout=0.3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (answer(200), HealthKind.OK),
        (answer(503), HealthKind.ENGINE_DEAD),
        (answer(404), HealthKind.OTHER),
        (answer(200, "<html>welcome</html>", "text/html"), HealthKind.OTHER),
        (never, HealthKind.TIMEOUT),
    ],
)
async def test_health_says_what_was_seen(handler: object, kind: HealthKind) -> None:
    async with running({"/health": handler}) as url, client(url) as vllm:
        assert (await vllm.health()).kind is kind


async def test_a_closed_port_is_refused_in_words() -> None:
    async with client("http://127.0.0.1:1") as vllm:
        health = await vllm.health()
        scrape = await vllm.scrape()
    assert health.kind is HealthKind.REFUSED
    assert isinstance(scrape, NotMeasured)
    assert "127.0.0.1:1" in scrape.reason


async def test_the_answer_comes_whole_with_its_time_and_cost() -> None:
    async with running({"/metrics": answer(200, METRICS)}) as url, client(url) as vllm:
        scrape = await vllm.scrape()
    assert isinstance(scrape, Scrape)
    assert scrape.body == METRICS.encode()
    assert scrape.content_type.startswith("text/plain")
    assert 0 <= scrape.seconds < 5
    assert abs(scrape.at_ms / 1000 - time.time()) < 5


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (answer(404), "404"),
        (never, "no answer within"),
    ],
)
async def test_what_cannot_be_read_has_a_reason(handler: object, words: str) -> None:
    async with running({"/metrics": handler}) as url, client(url) as vllm:
        scrape = await vllm.scrape()
    assert isinstance(scrape, NotMeasured)
    assert words in scrape.reason


async def test_a_unix_socket_and_an_api_key_work(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def keyed(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text=METRICS)

    async with running({"/metrics": keyed}, tmp_path / "v.sock") as url, client(url, api_key="k") as vllm:
        assert isinstance(await vllm.scrape(), Scrape)
    assert seen == ["Bearer k"]


MODELS = answer(200, '{"data":[{"id":"m"}]}')


async def test_one_small_request_is_the_proof() -> None:
    bodies: list[object] = []

    async def completion(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({})

    async with running({"/v1/models": MODELS, "/v1/completions": completion}) as url, client(url) as vllm:
        assert (await vllm.ask()).answered
    assert bodies == [{"model": "m", "prompt": "1", "max_tokens": 1, "temperature": 0}]


async def test_an_embedding_server_is_asked_for_an_embedding() -> None:
    routes = {"/v1/models": MODELS, "/v1/completions": answer(400), "/v1/embeddings": answer(200, "{}")}
    async with running(routes) as url, client(url) as vllm:
        said = await vllm.ask()
    assert said.answered
    assert said.detail.startswith("/v1/embeddings answered 200")


async def test_a_server_error_is_no_proof() -> None:
    async with running({"/v1/models": MODELS, "/v1/completions": answer(500)}) as url, client(url) as vllm:
        said = await vllm.ask()
    assert not said.answered
    assert "500" in said.detail
