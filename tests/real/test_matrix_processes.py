"""Who may die without harm, who takes whom along, and what an operator asks for: on a real server under
load.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.real.conftest import Start
from tests.support.figures import keep
from tests.support.load import BackgroundLoad, Shape, run_burst
from tests.support.real import START_SECONDS
from tests.support.supervised import Supervised, agent_command, wait_until

pytestmark = [pytest.mark.vllm_matrix, pytest.mark.timeout(1200)]
COMMAND = "make test-real"


def serving(agent: Supervised) -> None:
    agent.wait(START_SECONDS, "serving", lambda: agent.health() and agent.state() == "serving")


@contextmanager
def separate_watcher(agent: Supervised) -> Iterator[subprocess.Popen[bytes]]:
    """``agent watch`` beside a launcher that does not own it, as a sidecar is."""
    command = [*agent_command(), "watch", "--run-dir", str(agent.run_dir)]
    command += ["--listen", f"127.0.0.1:{agent.listen}", "--state-dir", str(agent.folder / "state")]
    with (agent.folder / "watch.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_killed_watcher_costs_no_request_and_comes_back(server: Start) -> None:
    agent = server()
    serving(agent)
    old = agent.watcher_process()
    assert old is not None
    with BackgroundLoad(agent.url, Shape(concurrency=4, max_tokens=100)) as load:
        time.sleep(3)
        os.kill(old.pid, signal.SIGKILL)
        killed = time.monotonic()
        agent.wait(60, "the watcher's answer", lambda: not old.alive() and agent.state() == "serving")
        back = time.monotonic() - killed
        time.sleep(3)
    assert load.outcomes.answered > 50
    assert load.outcomes.lost == 0, load.outcomes.summary()
    assert agent.exits() == []
    assert agent.incidents() == []
    keep("watcher-killed", COMMAND, {"watcher_back_seconds": round(back, 2), "load": load.outcomes.summary()})


def test_without_a_watcher_the_launcher_restarts_a_dead_server_by_itself(server: Start) -> None:
    agent = server(watcher=False)
    agent.wait_healthy(START_SECONDS)
    with separate_watcher(agent) as watcher:
        serving(agent)
        watcher.kill()
        watcher.wait()
    engine = agent.engine()
    assert engine is not None
    killed = time.monotonic()
    os.kill(engine.pid, signal.SIGKILL)
    agent.wait_exits(1)
    agent.wait(START_SECONDS, "the launcher's own restart", agent.health)
    back = time.monotonic() - killed
    assert run_burst(agent.url, Shape(requests=1)).answered == 1
    assert agent.exits()[0]["code"] == 0
    keep("launcher-alone", COMMAND, {"killed_to_healthy_seconds": round(back, 1), "exits": agent.exits()})
    assert agent.stop() == 0


def test_a_killed_launcher_leaves_no_process_of_vllm(server: Start) -> None:
    agent = server()
    serving(agent)
    family = agent.remember()
    titles = [process.title for process in family]
    assert any(title.startswith("VLLM::EngineCore") for title in titles), titles
    assert any(title.startswith("VLLM::Worker") for title in titles), titles
    with BackgroundLoad(agent.url, Shape(concurrency=4, max_tokens=400, timeout_seconds=20)):
        time.sleep(1)
        os.kill(agent.pid, signal.SIGKILL)
        killed = time.monotonic()
        server_processes = [process for process in family if "agent" not in process.title.split()]
        wait_until(
            30,
            "the end of every process of vLLM",
            lambda: not any(process.alive() for process in server_processes),
            context=lambda: str([process for process in family if process.alive()]),
        )
        gone = time.monotonic() - killed
    assert not agent.health()
    wait_until(30, "the end of the watcher", lambda: not any(process.alive() for process in family))
    keep("launcher-killed", COMMAND, {"all_gone_seconds": round(gone, 2), "processes": len(server_processes)})


@pytest.mark.parametrize("how", ["SIGTERM", "stop"])
def test_what_an_operator_asks_for_is_no_incident(server: Start, how: str) -> None:
    agent = server(watcher=False)
    agent.wait_healthy(START_SECONDS)
    with separate_watcher(agent):
        serving(agent)
        assert agent.process is not None
        if how == "stop":
            assert agent.verb("stop")["ok"]
        else:
            agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(60) == 0
        wait_until(20, "the state stopped", lambda: agent.state() == "stopped", context=agent.picture)
        time.sleep(3)
        assert agent.incidents() == []
        assert [record["asked"] for record in agent.exits()] == [True]


def throughput(agent: Supervised) -> dict[str, object]:
    """600 short requests; each prints an access line."""
    run_burst(agent.url, Shape(requests=100, concurrency=16, max_tokens=4))
    return run_burst(agent.url, Shape(requests=600, concurrency=16, max_tokens=4)).summary()


def test_output_that_nobody_reads_does_not_slow_the_server(
    server: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = server("--enable-log-requests", watcher=False)
    read.wait_healthy(START_SECONDS)
    control = [throughput(read) for _ in range(5)]
    assert read.stop() == 0
    read.folder = tmp_path_factory.mktemp("unread")
    read.stdout = subprocess.PIPE
    read.start()
    read.wait_healthy(START_SECONDS)
    unread = [throughput(read) for _ in range(5)]
    dropped = read.verb("status")["result"]["dropped_bytes"]
    keep("unread-stdout", COMMAND, {"read": control, "unread": unread, "dropped_bytes": dropped})
    assert dropped > 0, "the pipe was never full, so nothing is tested"
    best = min(float(str(run["seconds"])) for run in control)
    assert all(run["counts"] == {"answered": 600} for run in unread), unread
    assert min(float(str(run["seconds"])) for run in unread) <= 1.3 * best, (control, unread)
