"""A server that dies is named, repaired, proven; an end that somebody asked for is nothing."""

from __future__ import annotations

import os
import signal
import time

from tests.loop.conftest import Start, only, order, serving
from tests.support.load import Shape, run_burst

# Long enough for a request to fall into the proof, so that the step fails and is not called held.
IN_THE_PROOF = {"hold_seconds": 5, "serving_seconds": 30, "request_seconds": 10}
BURST = Shape(requests=16, concurrency=16, max_tokens=60)


def test_a_killed_engine_is_restarted_and_the_next_request_answered(start: Start) -> None:
    agent = start()
    serving(agent)
    engine = agent.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    record = agent.wait_exits(1)
    assert (record["code"], record["asked"]) == (0, False)
    incident = agent.wait_incident(30, states=("resolved",))
    assert incident["class"] == "engine-dead"
    assert [action["action"] for action in incident["actions"]] == ["restart"]
    assert run_burst(agent.url, Shape(requests=1)).answered == 1
    only(agent.incidents())


def test_an_oom_makes_the_batch_smaller_until_the_burst_is_answered(start: Start) -> None:
    agent = start("--max-num-seqs", "16", "--fault", "oom-above=8")
    serving(agent)
    assert run_burst(agent.url, BURST).lost > 0
    agent.wait_exits(1)
    serving(agent)
    assert run_burst(agent.url, BURST).lost == 0
    incident = agent.wait_incident(30, states=("resolved",))
    assert (incident["class"], incident["mechanism"]) == ("oom-serving", "batch")
    verified = [action for action in incident["actions"] if action["state"] == "verified"]
    assert ["--max-num-seqs", "8"] in verified[-1]["delta"]["flags"]
    only(agent.incidents())


def test_a_fragmented_allocator_gets_expandable_segments_at_the_same_batch(start: Start) -> None:
    agent = start("--max-num-seqs", "16", "--fault", "oom-fragmented=8")
    serving(agent)
    assert run_burst(agent.url, BURST).lost > 0
    agent.wait_exits(1)
    serving(agent)
    assert run_burst(agent.url, BURST).lost == 0
    incident = agent.wait_incident(30, states=("resolved",))
    assert incident["mechanism"] == "fragmentation"
    (action,) = incident["actions"]
    assert action["delta"]["flags"] == []
    assert action["delta"]["env"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_an_asked_stop_is_no_incident(start: Start) -> None:
    agent = start()
    serving(agent)
    assert agent.stop() == 0
    assert agent.exits()[-1]["asked"] is True
    assert "INCIDENT" not in agent.output.read_text()


def test_a_server_stopped_from_outside_is_started_again_without_an_incident(start: Start) -> None:
    agent = start()
    serving(agent)
    status = agent.status()
    assert status is not None
    os.kill(int(status["pid"]), signal.SIGTERM)
    agent.wait_exits(1)
    serving(agent)
    assert agent.incidents() == []


def test_a_fault_that_never_holds_opens_the_breaker_and_a_person_closes_it(start: Start) -> None:
    agent = start(
        "--max-num-seqs",
        "2",
        "--fault",
        "oom-above=0",
        settings={"breaker": {"failures": 2, "window_seconds": 900}, "verify": IN_THE_PROOF},
    )
    serving(agent)

    def broken() -> bool:
        if agent.health():
            run_burst(agent.url, Shape(requests=1, max_tokens=8))
        status = agent.status()
        return bool(status and status["breaker_open"])

    agent.wait(60, "the open breaker", broken)
    incident = agent.wait_incident(30, states=("unresolved",), index=len(agent.incidents()) - 1)
    assert "stays down" in incident["note"] and "agent breaker reset" in incident["note"], incident["note"]
    assert agent.probe_status("/readyz") == 503
    order(agent, "breaker", "reset")
    serving(agent)
    assert agent.status()["breaker_open"] is None  # type: ignore[index]


def test_at_the_floor_it_stays_down_across_the_agent_and_a_reset_brings_it_back(start: Start) -> None:
    """One sequence and 512 tokens are the least; what fails even there is a person's."""
    agent = start(
        *("--max-num-seqs", "2", "--max-num-batched-tokens", "512", "--num-gpu-blocks-override", "1024"),
        *("--max-model-len", "8192", "--fault", "oom-above=0"),
        settings={
            "breaker": {"failures": 50},
            "budget": {"actions": 50},
            "verify": IN_THE_PROOF,
        },
    )
    serving(agent)

    def given_up() -> bool:
        if agent.health():
            run_burst(agent.url, Shape(requests=1, max_tokens=8))
        return any(one["state"] == "unresolved" for one in agent.incidents())

    agent.wait(60, "the end of all remedies", given_up)
    note = agent.incidents()[0]["note"]
    assert "batch is at its floor (1 sequence, 512 tokens a step)" in note, note
    deaths = len(agent.exits())
    watcher = agent.watcher_process()
    assert watcher is not None
    os.kill(watcher.pid, signal.SIGKILL)
    agent.wait(20, "the watcher's return", lambda: agent.watcher_process() not in (None, watcher))
    agent.wait(20, "its word on the breaker", lambda: agent.status() and agent.status()["breaker_open"])
    time.sleep(3)
    assert len(agent.exits()) == deaths and not agent.health(), "started again although its breaker is open"
    assert (agent.probe_status("/livez"), agent.probe_status("/readyz")) == (200, 503)
    order(agent, "breaker", "reset")
    serving(agent)
