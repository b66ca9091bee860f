"""The HTTP API: what it answers, whom it obeys, and how it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.errors import AgentError, UsageError
from agent.model import State
from agent.serve import AgentMetrics, Api, start_api
from tests.api.conftest import TOKEN, MemoryBackend
from tests.journal.builders import TestClock

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def http(api: Api) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{api.port}") as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with http.request(method, path, **more) as answer:
        return answer.status, await answer.json()


def well_formed(body: Any) -> bool:
    error = body["error"]
    return set(error) == {"code", "message", "remedy"} and "Traceback" not in str(body)


async def test_reading_needs_no_token(http: aiohttp.ClientSession) -> None:
    assert await ask(http, "GET", "/api/v1/status") == (200, {"version": "0", "frozen": False, "servers": []})
    status, body = await ask(http, "GET", "/api/v1/incidents?limit=1")
    assert (status, [one["id"] for one in body["incidents"]]) == (200, ["i-1"])
    status, body = await ask(http, "GET", "/api/v1/incidents/i-2")
    assert (status, body["class"], body["schema_version"]) == (200, "oom-serving", 1)
    status, body = await ask(http, "GET", "/api/v1/alerts")
    assert (status, [one["labels"]["alertname"] for one in body["alerts"]]) == (200, ["VLLMQueueLong"])
    status, body = await ask(http, "GET", "/api/v1/rules")
    assert (status, [one["state"] for one in body["rules"]]) == (200, ["firing", "inactive"])


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "9" * 5000, "", "٣"])
async def test_a_wrong_limit_is_refused(http: aiohttp.ClientSession, limit: str) -> None:
    status, body = await ask(http, "GET", "/api/v1/incidents", params={"limit": limit})
    assert status == 400 and well_formed(body)


async def test_orders_reach_the_backend_with_their_actor(http: aiohttp.ClientSession, backend: MemoryBackend) -> None:
    status, body = await ask(http, "POST", "/api/v1/actions/a-1/approve", headers=BEARER, json={"actor": "ana"})
    assert (status, body["id"], body["state"]) == (200, "a-1", "approved")
    assert (await ask(http, "POST", "/api/v1/actions/i-1/deny", headers=BEARER))[1]["state"] == "denied"
    assert (await ask(http, "POST", "/api/v1/freeze", headers=BEARER))[1] == {"frozen": True}
    assert (await ask(http, "POST", "/api/v1/thaw", headers=BEARER))[1] == {"frozen": False}
    reset = {"actor": "ana", "server": "chat"}
    assert (await ask(http, "POST", "/api/v1/breaker/reset", headers=BEARER, json=reset))[1] == {"reset": ["chat"]}
    assert backend.told == [
        ("approved a-1", "ana"), ("denied a-1", "api"), ("freeze", "api"), ("thaw", "api"),
        ("reset chat", "ana"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "expected", "code"),
    [
        ("/api/v1/actions/a-0/approve", 409, "conflict"),
        ("/api/v1/actions/a-9/approve", 404, "not-found"),
        ("/api/v1/actions/i-9/approve", 404, "not-found"),
        ("/api/v1/actions/i-2/approve", 400, "bad-request"),
    ],
)
async def test_orders_that_make_no_sense_are_refused(
    http: aiohttp.ClientSession, path: str, expected: int, code: str
) -> None:
    status, body = await ask(http, "POST", path, headers=BEARER)
    assert (status, body["error"]["code"]) == (expected, code) and well_formed(body)
    assert body["error"]["remedy"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer \udcff"},
    ],
)
async def test_a_write_needs_the_token(
    http: aiohttp.ClientSession, backend: MemoryBackend, headers: dict[str, str]
) -> None:
    for path in ("actions/a-1/approve", "actions/a-1/deny", "freeze", "thaw", "breaker/reset"):
        raw = {name: value.encode("utf-8", "surrogateescape").decode("latin-1") for name, value in headers.items()}
        status, body = await ask(http, "POST", f"/api/v1/{path}", headers=raw)
        assert status == 401 and well_formed(body)
    assert backend.told == []


async def test_without_a_token_nobody_may_write(backend: MemoryBackend, metrics: AgentMetrics) -> None:
    api = await start_api(backend, "localhost:0", lambda: None, metrics)
    async with aiohttp.ClientSession(f"http://localhost:{api.port}") as http:
        status, body = await ask(http, "POST", "/api/v1/freeze", headers={"Authorization": "Bearer None"})
        assert (status, body["error"]["code"]) == (403, "no-token")
    await api.close()
    assert backend.told == []


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True), ("localhost:9911", True), ("[::1]:9911", True), ("LOCALHOST", True),
        ("evil.example", False), ("127.0.0.1.evil.example", False), ("evil.example:9911", False),
        ("10.0.0.1", False),
    ],
)  # fmt: skip
async def test_a_foreign_host_name_is_refused_on_loopback(
    http: aiohttp.ClientSession, host: str, allowed: bool
) -> None:
    status, body = await ask(http, "GET", "/api/v1/status", headers={"Host": host})
    assert status == (200 if allowed else 403)
    assert allowed or body["error"]["code"] == "bad-host"


async def test_beyond_loopback_any_host_name_is_served(backend: MemoryBackend, metrics: AgentMetrics) -> None:
    api = await start_api(backend, "0.0.0.0:0", lambda: TOKEN, metrics)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{api.port}") as http:
        assert (await ask(http, "GET", "/api/v1/status", headers={"Host": "pod-7.ml"}))[0] == 200
    await api.close()


async def test_refusals_are_json_without_a_traceback(
    http: aiohttp.ClientSession, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.broken = True
    cases: list[tuple[int, str, str, dict[str, Any]]] = [
        (404, "GET", "/api/v1/nothing", {}),
        (404, "GET", "/api/v1/incidents/i-9", {}),
        (404, "GET", "/api/v1/incidents/..%2F..%2Fetc", {}),
        (405, "POST", "/api/v1/status", {}),
        (405, "GET", "/api/v1/freeze", {}),
        (400, "POST", "/api/v1/freeze", {"headers": BEARER, "data": b"{"}),
        (400, "POST", "/api/v1/freeze", {"headers": BEARER, "data": b"[]"}),
        (400, "POST", "/api/v1/freeze", {"headers": BEARER, "json": {"acter": "x"}}),
        (400, "POST", "/api/v1/freeze", {"headers": BEARER, "json": {"actor": "a\nb"}}),
        (400, "POST", "/api/v1/freeze", {"headers": BEARER, "data": b"\xff\xfe"}),
        (413, "POST", "/api/v1/freeze", {"headers": BEARER, "data": b"x" * 100_000}),
        (500, "GET", "/api/v1/status", {}),
    ]
    for expected, method, path, more in cases:
        status, body = await ask(http, method, path, **more)
        assert (status, well_formed(body)) == (expected, True), (method, path, body)
        assert "secret" not in str(body)
    assert backend.told == []
    assert "a defect" in caplog.text


async def test_a_taken_port_is_named(backend: MemoryBackend, metrics: AgentMetrics, api: Api) -> None:
    with pytest.raises(AgentError, match="in use") as caught:
        await start_api(backend, f"127.0.0.1:{api.port}", lambda: TOKEN, metrics)
    assert "--listen" in str(caught.value.remedy)
    with pytest.raises(AgentError, match="cannot listen"):
        await start_api(backend, "192.0.2.1:1", lambda: TOKEN, metrics)
    for wrong in ("9911", ":9911", "a:b", "a:70000"):
        with pytest.raises(UsageError):
            await start_api(backend, wrong, lambda: TOKEN, metrics)


async def test_the_metrics_are_an_exposition(http: aiohttp.ClientSession, metrics: AgentMetrics) -> None:
    metrics.set_state("chat", State.DEAD)
    metrics.incident("chat", "oom-serving", "opened")
    metrics.time_to_open(0.03)
    metrics.notification("slack", "sent")
    async with http.get("/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = await answer.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    states = {one.labels["state"]: one.value for one in families["vllm_agent_server_state"].samples}
    assert states.pop("dead") == 1 and set(states.values()) == {0} and "serving" in states
    assert families["vllm_agent_incidents"].samples[0].labels == {
        "server": "chat", "class": "oom-serving", "outcome": "opened",
    }  # fmt: skip
    assert families["vllm_agent_build_info"].samples[0].labels["version"]
    assert all(name.startswith(("vllm_agent_", "process_")) for name in families)
    assert all(family.documentation for family in families.values()) and "_created" not in text
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with http.get("/metrics", headers=accept) as answer:
        assert "openmetrics" in answer.headers["Content-Type"]
        assert (await answer.text()).endswith("# EOF\n")


def test_an_age_grows_while_nobody_scrapes() -> None:
    clock = TestClock()
    metrics = AgentMetrics(clock)
    metrics.scraped("chat", 0.01)
    clock.advance(42)
    value = metrics.registry.get_sample_value("vllm_agent_scrape_age_seconds", {"server": "chat"})
    assert value == 42
    metrics.scraped("chat", 0.01)
    assert metrics.registry.get_sample_value("vllm_agent_scrape_age_seconds", {"server": "chat"}) == 0
