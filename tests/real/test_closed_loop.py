"""One real server dies twice, in the two ways that matter most, and serves again each time.

Part of ``make test``: three starts of vLLM, two to three minutes on two cores.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.real.conftest import Start
from tests.support.load import BackgroundLoad, Shape, run_burst
from tests.support.real import START_SECONDS
from tests.support.supervised import Json, Supervised

BATCH = 16
FITS = 8
BURST = Shape(requests=BATCH, concurrency=BATCH, max_tokens=200)


def serving(agent: Supervised) -> None:
    """Wait until the server answers and the agent says so."""
    agent.wait(START_SECONDS, "serving", lambda: agent.health() and agent.state() == "serving")


def kill_engine_under_load(agent: Supervised) -> Json:
    """SIGKILL to EngineCore while requests run; the exit record that follows."""
    engine = agent.engine()
    assert engine is not None, agent.picture()
    seen = len(agent.exits())
    with BackgroundLoad(agent.url, Shape(concurrency=4, max_tokens=400, stream=True)):
        time.sleep(1.0)
        os.kill(engine.pid, signal.SIGKILL)
        return agent.wait_exits(seen + 1)


def killed_engine_comes_back(agent: Supervised) -> None:
    record = kill_engine_under_load(agent)
    assert (record["code"], record["signal"], record["asked"]) == (0, None, False)
    serving(agent)
    assert run_burst(agent.url, Shape(requests=1)).answered == 1
    incident = agent.wait_incident(90, states=("resolved",))
    assert incident["class"] == "engine-dead", incident


def oom_makes_the_batch_smaller(agent: Supervised) -> None:
    seen = len(agent.exits())
    assert run_burst(agent.url, BURST).lost > 0, "the plugin did not act, so nothing is tested"
    assert agent.wait_exits(seen + 1)["code"] == 0
    serving(agent)
    repeated = run_burst(agent.url, BURST)
    assert repeated.lost == 0, repeated.summary()
    incident = agent.wait_incident(90, index=1, states=("resolved",))
    assert incident["class"] == "oom-serving", incident
    verified = [action for action in incident["actions"] if action["state"] == "verified"]
    assert ["--max-num-seqs", str(FITS)] in verified[-1]["delta"]["flags"], verified


@pytest.mark.vllm
@pytest.mark.timeout(480)
def test_a_killed_engine_and_an_oom_are_named_repaired_and_proven(server: Start) -> None:
    agent = server("--max-num-seqs", str(BATCH), oom_above=FITS)
    serving(agent)
    killed_engine_comes_back(agent)
    oom_makes_the_batch_smaller(agent)
    assert len(agent.incidents()) == 2, "one incident per cause"
    assert agent.stop() == 0
