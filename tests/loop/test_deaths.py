"""A server that dies is named, repaired, proven; an end that somebody asked for is nothing."""

from __future__ import annotations

import os
import signal

from tests.loop.conftest import Start, only, serving
from tests.support.load import Shape, run_burst

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
        settings={"breaker": {"failures": 2, "window_seconds": 900}},
    )
    serving(agent)

    def broken() -> bool:
        if agent.health():
            run_burst(agent.url, Shape(requests=1, max_tokens=8))
        status = agent.status()
        return bool(status and status["breaker_open"])

    agent.wait(60, "the open breaker", broken)
    incident = agent.wait_incident(30, states=("unresolved",), index=len(agent.incidents()) - 1)
    assert incident["note"], "a person is told what to do"
    assert agent.probe_status("/readyz") == 503
