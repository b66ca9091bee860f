"""The token goes to the watcher and to nobody else; a browser page cannot write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import aiohttp
import pytest

from agent.cli.client import ApiClient
from agent.errors import AgentError
from agent.serve import AgentMetrics, start_api
from tests.api.conftest import TOKEN, MemoryBackend
from tests.journal.builders import TestClock


class Listener(BaseHTTPRequestHandler):
    """Sends everybody on to ``/elsewhere`` and writes down what it was sent there."""

    seen: list[tuple[str, str | None]] = []  # noqa: RUF012 - emptied by the fixture

    def answer(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def redirecting() -> Iterator[str]:
    Listener.seen.clear()
    server = HTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.05))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_redirect_does_not_carry_the_token_on(redirecting: str) -> None:
    client = ApiClient(redirecting, TOKEN)
    with pytest.raises(AgentError, match="not the agent's API"):
        client.post("/api/v1/freeze", {})
    with pytest.raises(AgentError, match="not the agent's API"):
        client.get("/api/v1/status")
    assert [path for path, _ in Listener.seen] == ["/api/v1/freeze", "/api/v1/status"]


WRITES = ["actions/a-1/approve", "actions/a-1/deny", "freeze", "thaw", "breaker/reset"]


@pytest.mark.parametrize("path", WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": "Bearer é"},
        {"Cookie": f"token={TOKEN}", "Origin": "https://evil.example"},
        {"Content-Type": "text/plain", "Origin": "http://127.0.0.1"},
    ],
)
async def test_no_write_without_the_exact_token(path: str, headers: dict[str, str]) -> None:
    backend = MemoryBackend()
    api = await start_api(backend, "127.0.0.1:0", lambda: TOKEN, AgentMetrics(TestClock()))
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{api.port}/api/v1/{path}"
            async with session.post(url, headers=headers, data="{}") as answer:
                assert answer.status == 401 and TOKEN not in await answer.text()
            async with session.post(f"{url}?token={TOKEN}", headers=headers) as answer:
                assert answer.status == 401
            for method in ("GET", "OPTIONS", "PUT"):
                async with session.request(method, url, headers=headers) as answer:
                    assert answer.status == 405 and "Access-Control-Allow-Origin" not in answer.headers
    finally:
        await api.close()
    assert backend.told == []


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]", "", "0"])
async def test_a_foreign_host_name_reads_nothing(host: str) -> None:
    api = await start_api(MemoryBackend(), "127.0.0.1:0", lambda: TOKEN, AgentMetrics(TestClock()))
    try:
        async with aiohttp.ClientSession() as session:
            for path in ("metrics", "api/v1/status", "api/v1/incidents", "nowhere"):
                url = f"http://127.0.0.1:{api.port}/{path}"
                async with session.get(url, headers={"Host": host}) as answer:
                    assert answer.status == 403
    finally:
        await api.close()


async def test_silent_connections_keep_nobody_from_the_api() -> None:
    api = await start_api(MemoryBackend(), "127.0.0.1:0", lambda: TOKEN, AgentMetrics(TestClock()))
    silent = []
    try:
        for _ in range(300):
            silent.append(await asyncio.open_connection("127.0.0.1", api.port))
        assert api.runner.server is not None
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{api.port}/api/v1/status") as answer:
                assert answer.status == 200
            async with session.get(f"http://127.0.0.1:{api.port}/api/v1/incidents") as answer:
                assert answer.status == 200
        assert len(api.runner.server.connections) <= 130
    finally:
        for _, writer in silent:
            writer.close()
        await api.close()
