"""One GET of ``/metrics`` a round: what is asked for, what is bounded, and that nobody is asked in vain for ever."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone

import aiohttp
import pytest
from aiohttp import web

from agent.collect import Scrape, Target, VllmClient
from agent.collect.scrape import MetricsPage
from agent.model import NotMeasured

METRICS = b'vllm:generation_tokens_total{engine="0"} 12\n'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    app.router.add_get("/root/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def fixed(body: bytes, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4", **headers})

    return handler


async def scrape(url: str, clock: HandClock | None = None) -> Scrape | NotMeasured:
    async with VllmClient(Target(url=url), clock or HandClock(), timeout=10) as client:
        return await client.scrape()


async def test_one_connection_serves_many_rounds_and_asks_for_the_classic_text() -> None:
    seen: list[tuple[object, str, str]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.transport, request.headers["Accept"], request.headers["Accept-Encoding"]))
        return web.Response(body=METRICS)

    async with served(handler) as url, VllmClient(Target(url=f"{url}/root/"), HandClock()) as client:
        for _ in range(3):
            assert isinstance(await client.scrape(), Scrape)
    assert len(seen) == 3
    assert len({transport for transport, _, _ in seen}) == 1
    assert {accept for _, accept, _ in seen} == {"text/plain;version=0.0.4;q=0.9,*/*;q=0.1"}
    assert {encoding for _, _, encoding in seen} == {"identity"}


async def test_a_server_beyond_the_network_may_compress() -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Accept-Encoding"])
        return web.Response(body=gzip.compress(METRICS), headers={"Content-Encoding": "gzip"})

    async with served(handler) as url, aiohttp.ClientSession(auto_decompress=False) as session:
        answer = await MetricsPage(f"{url}/metrics", HandClock(), local=False).get(session)
    assert isinstance(answer, Scrape) and answer.body == METRICS
    assert seen == ["gzip"]


async def test_the_times_are_those_of_the_request() -> None:
    clock = HandClock()

    async def handler(_: web.Request) -> web.StreamResponse:
        clock.seconds += 1.5
        return web.Response(body=METRICS)

    async with served(handler) as url:
        answer = await scrape(url, clock)
    assert isinstance(answer, Scrape)
    assert (answer.at, answer.seconds) == (1001.5, 1.5)
    assert answer.at_ms == 1_767_225_600_000 + 1_000_000


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [(gzip.compress(METRICS), "gzip"), (zlib.compress(METRICS), "deflate"), (METRICS, "identity")],
)
async def test_what_comes_compressed_unasked_is_read(packed: bytes, encoding: str) -> None:
    async with served(fixed(packed, **{"Content-Encoding": encoding})) as url:
        answer = await scrape(url)
    assert isinstance(answer, Scrape) and answer.body == METRICS


@pytest.mark.parametrize(
    ("packed", "encoding", "words"),
    [
        (gzip.compress(METRICS * 50)[:-12], "gzip", "cut off"),
        (METRICS, "gzip", "cannot be decompressed"),
        (METRICS, "br", "'br'"),
    ],
)
async def test_what_cannot_be_decompressed_has_a_reason(packed: bytes, encoding: str, words: str) -> None:
    async with served(fixed(packed, **{"Content-Encoding": encoding})) as url:
        answer = await scrape(url)
    assert isinstance(answer, NotMeasured)
    assert words in answer.reason


async def test_an_answer_that_is_too_large_is_not_read_and_not_asked_for_every_second() -> None:
    asked = 0
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal asked, sent
        asked += 1
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1600):
            await response.write(METRICS * 1500)  # 64 KiB each, 100 MiB in all
            sent += 1
        return response

    clock = HandClock()
    async with served(endless) as url, VllmClient(Target(url=url), clock, timeout=30) as client:
        first = await client.scrape()
        assert isinstance(first, NotMeasured)
        assert "larger than 16 MiB" in first.reason and "asked again in 30 s" in first.reason
        waits = []
        for _ in range(1500):
            clock.seconds += 1
            before = asked
            answer = await client.scrape()
            assert isinstance(answer, NotMeasured) and "larger than 16 MiB" in answer.reason
            if asked > before:
                waits.append(clock.seconds)
    assert [later - sooner for sooner, later in zip([1000, *waits], waits, strict=False)] == [30, 60, 120, 240, 480]
    assert sent < 6 * 600  # a connection holds some megabytes more than was read


async def test_a_declared_size_is_refused_before_it_is_read() -> None:
    async def claims(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(100 * 2**20)})
        await response.prepare(request)
        await asyncio.sleep(20)
        return response

    async with served(claims) as url:
        answer = await asyncio.wait_for(scrape(url), 5)
    assert isinstance(answer, NotMeasured) and "larger than 16 MiB" in answer.reason


async def test_after_the_pause_a_sound_answer_counts_again() -> None:
    bodies = [METRICS * 500_000, METRICS, METRICS]

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=bodies.pop(0))

    clock = HandClock()
    async with served(handler) as url, VllmClient(Target(url=url), clock, timeout=10) as client:
        assert isinstance(await client.scrape(), NotMeasured)
        clock.seconds += 31
        assert isinstance(await client.scrape(), Scrape)
        clock.seconds += 1
        assert isinstance(await client.scrape(), Scrape)


async def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"a 1\n" * (64 << 20), 1)  # 256 MiB
    async with served(fixed(bomb, **{"Content-Encoding": "gzip"})) as url:
        tracemalloc.start()
        answer = await scrape(url)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert isinstance(answer, NotMeasured) and "larger than 16 MiB" in answer.reason
    assert peak < 48 << 20


async def test_a_connection_that_breaks_in_the_answer_is_a_reading() -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(METRICS)
        assert request.transport is not None
        request.transport.close()
        return response

    async with served(breaks) as url:
        answer = await scrape(url)
    assert isinstance(answer, NotMeasured) and "no answer from" in answer.reason
