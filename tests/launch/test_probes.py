"""What a kubelet is told, state by state, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from agent.launch.judge import Facts, Opinion, judge
from tests.launch.harness import Factory, free_port

LIVES = Facts(now=100.0, started=50.0, ready=True)


def said(state: str, at: float = 95.0, acting: bool = False) -> Facts:
    return replace(LIVES, opinion=Opinion(state, "because", acting, at))


@pytest.mark.parametrize(
    ("facts", "state", "live", "ready"),
    [
        (said("serving"), "serving", True, True),
        (said("saturated"), "saturated", True, True),
        (said("starting"), "starting", True, False),
        (said("paused"), "paused", True, False),
        (said("repairing"), "repairing", True, False),
        (said("stalled"), "stalled", False, False),
        (said("stalled", acting=True), "stalled", True, False),
        (said("stalled", at=89.9), "unknown", True, None),
        (said("unknown"), "unknown", True, None),
        (said("serving", at=49.0), "unknown", True, None),  # about the server before this one
        (LIVES, "unknown", True, None),
        (replace(LIVES, ready=False), "starting", True, False),
        (replace(said("serving"), stopping="stop"), "draining", True, False),
        (replace(said("stalled"), stopping="drain"), "draining", True, False),
        (replace(LIVES, started=None), "dead", True, False),
        (replace(said("stalled"), started=None), "dead", True, False),
        (replace(LIVES, started=None, held=True), "repairing", True, False),
        (replace(LIVES, started=None, restarting=True), "repairing", True, False),
        (replace(LIVES, started=None, breaker_open=True, restarting=True), "dead", True, False),
        (replace(LIVES, started=None, stopping="stop"), "stopped", True, False),
    ],
)
def test_the_table(facts: Facts, state: str, live: bool, ready: bool | None) -> None:
    answer = judge(facts)
    assert (answer.state, answer.live, answer.ready) == (state, live, ready)
    assert answer.reason


async def ask(port: int, path: str) -> tuple[int, dict[str, object]]:
    def get() -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(get)


async def test_probes_over_http(launch: Factory) -> None:
    port = free_port()
    launched = launch("--port", str(port), probe=True)
    ready = await launched.ready()
    status, body = await ask(launched.probe, "/readyz")
    assert (status, body["state"], body["verdict_age_seconds"]) == (200, "unknown", None)
    await ask_server(port, "/set/health/503")
    assert (await ask(launched.probe, "/readyz"))[0] == 503, "vLLM's own /health decides while nobody judges"
    assert (await ask(launched.probe, "/livez"))[0] == 200
    await launched.client.call("verdict", state="serving", reason="tokens move")
    status, body = await ask(launched.probe, "/readyz")
    assert status == 200 and body["state"] == "serving" and body["reason"] == "tokens move"
    assert isinstance(body["verdict_age_seconds"], float) and str(body["since"]).endswith("Z")
    await launched.client.call("verdict", state="stalled")
    assert (await ask(launched.probe, "/livez"))[0] == 503
    await launched.client.call("verdict", state="stalled", acting=True)
    assert (await ask(launched.probe, "/livez"))[0] == 200
    os.kill(int(str(ready["pid"])), signal.SIGKILL)
    await launched.event("exit")
    status, body = await ask(launched.probe, "/readyz")
    assert status == 503 and body["state"] == "repairing"
    assert (await ask(launched.probe, "/livez"))[0] == 200
    assert (await ask(launched.probe, "/nothing"))[0] == 404


async def ask_server(port: int, path: str) -> None:
    await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}{path}")


async def test_garbage_on_the_probe_port_harms_nothing(launch: Factory) -> None:
    launched = launch(probe=True)
    await launched.event("started")
    for data in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"x" * 20000, b""):
        _, writer = await asyncio.open_connection("127.0.0.1", launched.probe)
        writer.write(data)
        writer.close()
    assert (await ask(launched.probe, "/livez"))[0] == 200
    assert "Traceback" not in launched.stderr_path.read_text()


async def test_a_taken_probe_port_that_was_asked_for_is_an_error(launch: Factory) -> None:
    first = launch(probe=True)
    await first.event("started")
    options = ("--probe", f"127.0.0.1:{first.probe}")
    second = launch(run_dir=first.run_dir.parent / "other", options=options)
    assert await second.ended() not in (0, 70)
    text = second.stderr_path.read_text()
    assert "probe port" in text and "remedy" in text and "Traceback" not in text
