"""The stand-in freezes as a real server does, and the agent around it tells the kubelet the truth."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.load import BackgroundLoad, Shape
from tests.support.probing import Kubelet
from tests.support.processes import free_port
from tests.support.supervised import Supervised, fetch

WELL = ("serving", "saturated")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Supervised]:
    port = free_port()
    command = [sys.executable, "-m", "agent", "sim", "--served-model-name", "tiny", "--port", str(port)]
    with Supervised(tmp_path / "server", command, port) as one:
        one.wait(60, "serving", lambda: one.health() and one.state() == "serving")
        yield one


def fault(agent: Supervised, name: str, argument: str = "") -> None:
    body = json.dumps({"name": name, "arg": argument}).encode()
    urllib.request.urlopen(
        urllib.request.Request(agent.url + "/sim/fault", data=body, method="POST"), timeout=10
    ).close()


def series(agent: Supervised) -> list[str]:
    """What a step of the engine changes."""
    body = fetch(agent.url + "/metrics").decode()
    return [
        line for line in body.splitlines() if line.startswith(("vllm:num_", "vllm:gen", "vllm:iter", "vllm:prompt_t"))
    ]


def test_a_hang_is_unknown_and_a_stopped_engine_is_stalled_until_each_goes_on(agent: Supervised) -> None:
    with Kubelet(agent.probe) as kubelet, BackgroundLoad(agent.url, Shape(concurrency=8, max_tokens=400)):
        time.sleep(4)
        fault(agent, "hang", "14")
        time.sleep(1)
        frozen = series(agent)
        agent.wait(14, "unknown", lambda: agent.state() == "unknown")
        assert series(agent) == frozen, "no series moves in a hang"
        assert agent.health() and not kubelet.failed
        agent.wait(20, "serving again", lambda: agent.state() in WELL)
        engine = agent.engine()
        assert engine is not None
        os.kill(engine.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            agent.wait(30, "/livez 503", lambda: agent.probe_status("/livez") == 503)
            assert agent.health() and time.monotonic() - began < 20
            assert f"pid {engine.pid}" in str((agent.status() or {}).get("reason"))
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        agent.wait(20, "serving again", lambda: agent.state() in WELL and agent.probe_status("/livez") == 200)
    assert not agent.exits()


def test_an_engine_that_stays_stopped_is_an_incident_and_is_restarted_and_proven(agent: Supervised) -> None:
    """/livez fails from the verdict until the agent acts, and then no more: a kubelet leaves the repair alone."""
    with BackgroundLoad(agent.url, Shape(concurrency=8, max_tokens=400)):
        time.sleep(4)
        engine = agent.engine()
        assert engine is not None
        os.kill(engine.pid, signal.SIGSTOP)
        agent.wait(40, "/livez 503", lambda: agent.probe_status("/livez") == 503)
        incident = agent.wait(20, "an incident", lambda: next(iter(agent.incidents()), None))
        assert incident["class"] == "engine-hang" and f"kill -CONT {engine.pid}" in incident["summary"]
        assert incident["state"] == "open" and not agent.exits()
        agent.wait(60, "/livez 200 in the repair", lambda: agent.probe_status("/livez") == 200)
        closed = agent.wait(
            100, "the repair", lambda: next((one for one in agent.incidents() if one["state"] == "resolved"), None)
        )
    assert [(one["action"], one["state"]) for one in closed["actions"]] == [("restart", "verified")], closed
    assert {"liveness", "processes", "health"} <= {one["source"] for one in closed["evidence"]}
    assert [one["asked"] for one in agent.exits()] == [True]
    text = fetch(agent.api + "/metrics").decode()
    starts = [line for line in text.splitlines() if line.startswith("vllm_agent_server_starts_total{")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in starts) == 2, starts
    assert any('reason="restart"' in line and line.endswith(" 1.0") for line in starts), starts
