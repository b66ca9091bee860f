"""The load generator counts what clients really saw; every test of repairs leans on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from tests.support.load import Shape, SteadyLoad, burst
from tests.support.processes import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]
STREAM = Shape(requests=4, concurrency=2, stream=True)
PLAIN = Shape(requests=4, concurrency=2)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server with one handler for completions; its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        port = free_port()
        await web.TCPSite(runners[-1], "127.0.0.1", port).start()
        return f"http://127.0.0.1:{port}"

    yield start
    for runner in runners:
        await runner.cleanup()


def stream_of(*lines: str) -> Handler:
    """A stream with status 200 that sends these lines and ends."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for line in lines:
            await response.write(f"data: {line}\n\n".encode())
        return response

    return handler


async def test_whole_streams_are_answered(serve: Serve) -> None:
    url = await serve(stream_of('{"choices": []}', "[DONE]"))
    assert (await burst(url, STREAM)).counts == {"answered": 4}


async def test_a_stream_without_its_end_is_truncated(serve: Serve) -> None:
    url = await serve(stream_of('{"choices": []}'))
    assert (await burst(url, STREAM)).counts == {"truncated": 4}


async def test_an_error_inside_a_200_stream_is_no_answer_although_it_ends_with_done(serve: Serve) -> None:
    url = await serve(stream_of('{"error": {"code": 500}}', "[DONE]"))
    outcomes = await burst(url, STREAM)
    assert outcomes.counts == {"error_in_stream": 4}
    assert outcomes.lost == 4


async def test_statuses_are_counted_apart_from_cut_connections(serve: Serve) -> None:
    calls = iter(range(4))

    async def handler(request: web.Request) -> web.StreamResponse:
        if next(calls) % 2 == 0:
            return web.json_response({"error": {}}, status=500)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    outcomes = await burst(await serve(handler), PLAIN)
    assert outcomes.counts == {"http_500": 2, "reset": 2}
    assert outcomes.latencies == []


async def test_nobody_there_is_a_reset_and_never_an_exception() -> None:
    outcomes = await burst(f"http://127.0.0.1:{free_port()}", PLAIN)
    assert outcomes.counts == {"reset": 4}


async def test_concurrency_is_bounded(serve: Serve) -> None:
    inside = most = 0

    async def handler(_: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return web.json_response({})

    url = await serve(handler)
    assert (await burst(url, Shape(requests=20, concurrency=3))).answered == 20
    assert most == 3


async def test_a_steady_load_awaits_what_is_in_flight_at_its_end(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return web.json_response({})

    async with SteadyLoad(await serve(handler), PLAIN) as load:
        for _ in range(10):
            await asyncio.sleep(0.01)
    assert load.outcomes.answered >= 4
    assert load.outcomes.lost == 0
