"""Whose process is whose, and what was really watched: titles as vLLM sets them, real processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from agent.collect import ProcessState, from_probe
from agent.collect.process import _local
from agent.watch.activity import Activity, Computing, GpuWork, owners


def process(pid: int, ppid: int, title: str, state: str = "S", cpu: float = 0.0) -> ProcessState:
    return ProcessState(pid=pid, ppid=ppid, title=title, state=state, cpu_seconds=cpu)


TWO_ENGINES = (
    process(1, 0, "/venv/bin/vllm serve m --data-parallel-size 2"),
    process(2, 1, "/venv/bin/python -c from multiprocessing.resource_tracker import main"),
    process(3, 1, "VLLM::DPCoordinator"),
    process(4, 1, "VLLM::EngineCore_DP0"),
    process(5, 1, "VLLM::EngineCore_DP1"),
    process(6, 1, "VLLM::APIServer_0"),
    process(7, 4, "VLLM::Worker"),
    process(8, 5, "VLLM::Worker"),
    process(9, 8, "ptxas --gpu-name=sm_90a"),
)


def test_two_engines_as_seen_on_a_real_server() -> None:
    assert owners(TWO_ENGINES) == {
        1: "api", 2: "*", 3: "api", 4: "0", 5: "1", 6: "api", 7: "0", 8: "1", 9: "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("title", "owner"),
    [
        ("VLLM::EngineCor", "0"),
        ("VLLM::EngineCore_DP12", "12"),
        ("mine::EngineCore", "0"),
        ("VLLM::Worker_DP3_TP1", "3"),
    ],
)
def test_titles_cut_or_with_another_prefix_are_understood(title: str, owner: str) -> None:
    assert owners([process(1, 0, "vllm"), process(2, 1, "VLLM::EngineCore"), process(3, 2, title)])[3] == owner


def test_without_titles_nothing_is_known() -> None:
    members = [process(1, 0, "python -m vllm"), process(2, 1, "python", state="T")]
    activity = Activity()
    for second in range(40):
        activity.saw(members, GpuWork.NONE, float(second))
    assert activity.halted("0", 39.0) is None
    assert activity.computing("0", 39.0, 10) is Computing.UNKNOWN


def engine(cpu: float, state: str = "S") -> list[ProcessState]:
    return [process(1, 0, "vllm"), process(2, 1, "VLLM::EngineCore", cpu=cpu, state=state)]


def test_a_window_counts_only_where_it_was_watched() -> None:
    activity = Activity()
    activity.saw(engine(5.0), GpuWork.NONE, 0.0)
    activity.saw(engine(5.0), GpuWork.NONE, 5.0)
    assert activity.computing("0", 5.0, 10) is Computing.UNKNOWN, "only five seconds were watched"
    activity.saw(engine(5.0), GpuWork.NONE, 30.0)
    assert activity.computing("0", 30.0, 10) is Computing.UNKNOWN, "a hole in between"
    for second in range(31, 42):
        activity.saw(engine(5.0), GpuWork.NONE, float(second))
    assert activity.computing("0", 41.0, 10) is Computing.NOBODY
    assert activity.computing("0", 50.0, 10) is Computing.UNKNOWN, "the newest reading is old"


def test_a_gpu_that_worked_once_in_the_window_and_a_process_that_came_are_work() -> None:
    activity = Activity()
    for second in range(12):
        activity.saw(engine(5.0), GpuWork.BUSY if second == 5 else GpuWork.IDLE, float(second))
    assert activity.computing("0", 11.0, 10) is Computing.SOMEBODY
    for second in range(12, 30):
        activity.saw(engine(5.0), GpuWork.IDLE, float(second))
    assert activity.computing("0", 29.0, 10) is Computing.NOBODY
    activity.saw([*engine(5.0), process(3, 2, "ptxas")], GpuWork.IDLE, 30.0)
    assert activity.computing("0", 30.0, 10) is Computing.SOMEBODY


def test_a_stop_is_counted_from_its_first_reading_without_a_break() -> None:
    activity = Activity()
    for second, letter in enumerate("SSTTSTTTT"):
        activity.saw(engine(5.0, letter), GpuWork.NONE, float(second))
    halted = activity.halted("0", 8.0)
    assert halted is not None and (halted.seconds, halted.pid, halted.letter) == (3.0, 2, "T")


def test_the_launchers_probe_is_read_with_states_and_an_old_launchers_without() -> None:
    one = {"pid": 2, "ppid": 1, "name": "VLLM::EngineCor", "cmdline": "VLLM::EngineCore", "rss_bytes": 1,
           "state": "T", "cpu_seconds": 3.5}  # fmt: skip
    reading = from_probe({"processes": [one]})
    assert reading.members == (process(2, 1, "VLLM::EngineCore", "T", 3.5),)  # type: ignore[union-attr]
    del one["state"]
    assert from_probe({"processes": [one]}).members == ()  # type: ignore[union-attr]


def test_a_real_process_that_is_stopped_reads_as_stopped() -> None:
    import psutil

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while (seen := _local(psutil.Process(child.pid))) is None or seen.state != "T":
            assert time.monotonic() < deadline, seen
            time.sleep(0.01)
        assert "time.sleep" in seen.title and seen.ppid == os.getpid()
    finally:
        child.kill()
        child.wait()
