"""The agent's own deaths never touch serving, and nothing is done twice."""

from __future__ import annotations

import os
import signal

from tests.loop.conftest import Start, only, serving
from tests.support.load import BackgroundLoad, Shape, run_burst
from tests.support.processes import subtree


def test_a_killed_watcher_costs_no_request_and_comes_back(start: Start) -> None:
    agent = start()
    serving(agent)
    watcher = agent.watcher_process()
    assert watcher is not None
    with BackgroundLoad(agent.url, Shape(concurrency=4, max_tokens=40)) as load:
        os.kill(watcher.pid, signal.SIGKILL)
        agent.wait(20, "the watcher's return", lambda: agent.watcher_process() not in (None, watcher))
        serving(agent)
    assert load.outcomes.lost == 0, load.outcomes.summary()
    assert load.outcomes.answered > 0


def test_without_a_watcher_the_launcher_restarts_the_server_by_itself(start: Start) -> None:
    agent = start(watcher=False)
    agent.wait_healthy(30)
    engine = agent.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    agent.wait_exits(1)
    agent.wait_healthy(30)
    assert run_burst(agent.url, Shape(requests=1)).answered == 1


def test_a_killed_launcher_leaves_no_process_of_the_server(start: Start) -> None:
    agent = start()
    serving(agent)
    family = subtree(agent.pid)
    assert len(family) >= 3
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait(10)  # type: ignore[union-attr]

    def gone() -> bool:
        return not any(one.alive() for one in family if "watch" not in one.title)

    from tests.support.supervised import wait_until

    wait_until(15, "the end of every process of the server", gone)


def test_a_watcher_killed_during_verification_finishes_it_and_repeats_nothing(start: Start) -> None:
    agent = start(settings={"verify": {"hold_seconds": 3, "serving_seconds": 30, "request_seconds": 10}})
    serving(agent)
    engine = agent.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    agent.wait_incident(30, states=("verifying",))
    watcher = agent.watcher_process()
    assert watcher is not None
    os.kill(watcher.pid, signal.SIGKILL)
    incident = agent.wait_incident(40, states=("resolved", "unresolved"))
    assert incident["state"] == "resolved", incident
    assert len(agent.exits()) == 1, "the server was restarted twice"
    only(agent.incidents())
