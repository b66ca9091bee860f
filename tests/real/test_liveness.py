"""A hung worker under load, on a real server whose /health goes on saying 200: the short form, one start of vLLM."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.real.conftest import Start
from tests.support.load import BackgroundLoad, Shape
from tests.support.probing import Kubelet
from tests.support.processes import titled
from tests.support.real import START_SECONDS
from tests.support.supervised import Supervised, wait_until

STEADY_SECONDS = 5.0
RECOVERS_SECONDS = 20.0


def serving(agent: Supervised) -> None:
    agent.wait(START_SECONDS, "serving", lambda: agent.health() and agent.state() == "serving")


def stalled_after(agent: Supervised, pid: int, within: float) -> float:
    """Stop ``pid``; how long it took until /livez failed with /health still at 200. It is always let go on."""
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(within + 30, "/livez 503", lambda: agent.probe_status("/livez") == 503, context=agent.picture)
        took = time.monotonic() - began
        assert agent.state() == "stalled" and agent.health(), agent.picture()
        return took
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.vllm
@pytest.mark.timeout(400)
def test_a_stopped_worker_under_load_fails_livez_within_15_s_and_comes_back(server: Start) -> None:
    agent = server()
    with Kubelet(agent.probe) as before:
        serving(agent)
    assert not before.failed
    worker = titled(agent.pid, "VLLM::Worker")[0]
    with BackgroundLoad(agent.url, Shape(concurrency=8, max_tokens=900)) as load:
        time.sleep(STEADY_SECONDS)
        took = stalled_after(agent, worker.pid, 15)
        agent.wait(RECOVERS_SECONDS, "serving again", lambda: agent.probe_status("/livez") == 200)
        agent.wait(RECOVERS_SECONDS, "serving again", lambda: agent.state() in ("serving", "saturated"))
        status = agent.status()
    assert took <= 15, took
    assert load.outcomes.lost == 0, load.outcomes.summary()
    assert status is not None and not agent.exits(), agent.picture()


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_worker_that_stays_stopped_is_an_incident_and_the_server_is_restarted_and_proven(server: Start) -> None:
    agent = server()
    serving(agent)
    worker = titled(agent.pid, "VLLM::Worker")[0]
    with BackgroundLoad(agent.url, Shape(concurrency=8, max_tokens=900)):
        time.sleep(STEADY_SECONDS)
        began = time.monotonic()
        os.kill(worker.pid, signal.SIGSTOP)
        agent.wait(30, "/livez 503", lambda: agent.probe_status("/livez") == 503)
        took = time.monotonic() - began
        assert agent.health(), "vLLM says that it is well"
        incident = agent.wait(20, "an incident", lambda: next(iter(agent.incidents()), None))
        assert incident["class"] == "engine-hang" and f"kill -CONT {worker.pid}" in incident["summary"], incident
        agent.wait(60, "/livez 200 in the repair", lambda: agent.probe_status("/livez") == 200)
    closed = agent.wait(
        START_SECONDS + 120, "the repair", lambda: next((one for one in agent.incidents() if one["resolved_at"]), None)
    )
    assert took <= 15, took
    assert [(one["action"], one["state"]) for one in closed["actions"]] == [("restart", "verified")], closed
    assert len(agent.incidents()) == 1 and [one["asked"] for one in agent.exits()] == [True], agent.picture()
    assert worker.pid not in {one.pid for one in titled(agent.pid, "VLLM::Worker")}
