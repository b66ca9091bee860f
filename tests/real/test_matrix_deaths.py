"""Deaths of a real server under load: how fast they are seen, and what the remedies do when they hold or do
not.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.real.conftest import Start
from tests.support.figures import keep, spread
from tests.support.load import BackgroundLoad, Shape, run_burst
from tests.support.processes import subtree
from tests.support.real import PATIENT, START_SECONDS
from tests.support.supervised import Json, Supervised

pytestmark = [pytest.mark.vllm_matrix, pytest.mark.timeout(3600)]
COMMAND = "make test-real"
KILLS = 20
LOAD = Shape(concurrency=8, max_tokens=400, stream=True)


def seconds(text: str) -> float:
    """An RFC 3339 time as seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def serving(agent: Supervised) -> None:
    agent.wait(START_SECONDS, "serving", lambda: agent.health() and agent.state() == "serving")


@contextmanager
def loaded(agent: Supervised) -> Iterator[BackgroundLoad]:
    """Requests in flight around the block."""
    with BackgroundLoad(agent.url, LOAD) as load:
        time.sleep(1.0)
        yield load


def kill_once(agent: Supervised, number: int) -> Json:
    """Kill EngineCore under load, wait for the repair; what was measured, all times in seconds."""
    engine = agent.engine()
    assert engine is not None, agent.picture()
    with loaded(agent):
        killed_at = time.time()
        os.kill(engine.pid, signal.SIGKILL)
        record = agent.wait_exits(number + 1)
    assert (record["code"], record["asked"]) == (0, False), record
    incident = agent.wait_incident(START_SECONDS, index=number, states=("resolved", "unresolved"))
    assert (incident["class"], incident["state"]) == ("engine-dead", "resolved"), incident
    serving(agent)
    answered = run_burst(agent.url, Shape(requests=1)).answered
    assert answered == 1
    return {
        "exited_to_opened": seconds(incident["opened_at"]) - seconds(record["exited_at"]),
        "killed_to_opened": seconds(incident["opened_at"]) - killed_at,
        "killed_to_exited": seconds(record["exited_at"]) - killed_at,
        "exited_to_resolved": seconds(incident["resolved_at"]) - seconds(record["exited_at"]),
    }


def test_twenty_killed_engines_are_seen_within_a_tenth_of_a_second(server: Start) -> None:
    agent = server()
    serving(agent)
    kills = [kill_once(agent, number) for number in range(KILLS)]
    opened = [kill["exited_to_opened"] for kill in kills]
    figures = {name: spread([kill[name] for kill in kills]) for name in kills[0]}
    keep("kill-engine", COMMAND, {"unit": "seconds", **figures, "raw": kills})
    assert spread(opened)["p95"] <= 0.100, figures


def kill_server_without_a_word(agent: Supervised, number: int) -> float:
    """SIGKILL to the API server itself: nothing is logged, the exit alone tells. Seconds from exit to incident."""
    status = agent.status()
    assert status is not None and status["pid"], agent.picture()
    family = subtree(status["pid"])
    with loaded(agent):
        os.kill(status["pid"], signal.SIGKILL)
        record = agent.wait_exits(number + 1)
    assert (record["code"], record["signal"], record["asked"]) == (None, signal.SIGKILL, False), record
    incident = agent.wait_incident(START_SECONDS, index=number, states=("resolved", "unresolved"))
    assert incident["state"] == "resolved", incident
    assert not any(process.alive() for process in family), "the dead server's engine and worker are gone"
    serving(agent)
    return seconds(incident["opened_at"]) - seconds(record["exited_at"])


def test_a_server_killed_without_a_word_is_seen_by_its_exit_within_a_tenth_of_a_second(server: Start) -> None:
    agent = server()
    serving(agent)
    opened = [kill_server_without_a_word(agent, number) for number in range(5)]
    keep("kill-server", COMMAND, {"unit": "seconds", "exited_to_opened": spread(opened), "raw": opened})
    assert max(opened) <= 0.100, opened


def test_an_oom_reduces_the_batch_until_it_holds(server: Start) -> None:
    batch, fits = 32, 8
    shape = Shape(requests=batch, concurrency=batch, max_tokens=200)
    agent = server("--max-num-seqs", str(batch), oom_above=fits)
    serving(agent)
    rounds: list[dict[str, Any]] = []
    for _ in range(5):
        before = len(agent.exits())
        outcomes = run_burst(agent.url, shape)
        rounds.append(outcomes.summary())
        if outcomes.lost == 0:
            break
        agent.wait_exits(before + 1)
        serving(agent)
    assert outcomes.lost == 0, rounds
    last = agent.wait_incident(120, index=len(agent.incidents()) - 1, states=("resolved",))
    incidents = agent.incidents()
    assert {incident["class"] for incident in incidents} == {"oom-serving"}
    assert ["--max-num-seqs", str(fits)] in last["actions"][-1]["delta"]["flags"]
    assert len(agent.exits()) == 2, "32, 16 and 8 sequences: two deaths"
    actions = [action for incident in incidents for action in incident["actions"]]
    keep("oom-batch", COMMAND, {"bursts": rounds, "actions": actions, "exits": agent.exits()})


def test_a_fault_that_never_holds_opens_the_breaker_and_the_server_stays_down(server: Start) -> None:
    settings = {**PATIENT, "breaker": {"failures": 3}, "budget": {"actions": 10}}
    agent = server("--max-num-seqs", "64", oom_above=0, settings=settings)
    agent.wait(START_SECONDS, "the first start", agent.health)
    run_burst(agent.url, Shape(requests=1))  # even one sequence is too many, so no batch is small enough

    def opened() -> bool:
        status = agent.status()
        return bool(status and status.get("breaker_open"))

    begun = time.monotonic()
    while not opened() and time.monotonic() - begun < 900:
        if agent.health():
            run_burst(agent.url, Shape(requests=1))
        time.sleep(0.5)
    assert opened(), agent.picture()
    deaths = len(agent.exits())
    assert agent.incidents()[-1]["state"] == "unresolved"
    time.sleep(10)
    assert len(agent.exits()) == deaths, "nothing is tried after the breaker opened"
    assert agent.probe_status("/livez") == 200, "the kubelet must not kill what waits for a person"
    assert agent.probe_status("/readyz") == 503
    keep("breaker", COMMAND, {"deaths": deaths, "incidents": agent.incidents(), "exits": agent.exits()})
