"""The stand-in's card: its state file and the nvidia-smi that answers from it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from agent.sim import write_stub
from tests.sim.standin import Standin

FORMAT = "--format=csv,noheader,nounits"


def ask(stub: Path, *args: str) -> tuple[int, list[list[str]]]:
    """Exit status and cells of one call, through PATH as a user of nvidia-smi would call it."""
    env = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    answer = subprocess.run(["nvidia-smi", *args], capture_output=True, text=True, timeout=20, env=env, check=False)
    return answer.returncode, [line.split(", ") for line in answer.stdout.splitlines()]


def test_memory_follows_the_engine_and_comes_back_when_it_is_killed(tmp_path: Path) -> None:
    state = tmp_path / "card.csv"
    stub = write_stub(tmp_path / "bin", state)
    assert ask(stub, "--query-gpu=index", FORMAT)[0] == 9
    with Standin("--sim-smi", str(state), "--fault", "oom-neighbour=5") as sim:
        sim.ready()
        fields = "index,uuid,name,memory.total,memory.used,memory.free,compute_cap"
        code, [[index, uuid, _, total, used, free, capability]] = ask(stub, f"--query-gpu={fields}", FORMAT)
        assert (code, index, total, capability) == (0, "0", "81920", "9.0")
        assert int(used) + int(free) == int(total)
        assert int(used) > 70_000
        engine = sim.engine()
        apps = ask(stub, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", FORMAT)[1]
        assert apps == [[uuid, str(engine), used, "VLLM::EngineCore"]]
        sim.burst(1)
        apps = ask(stub, "--query-compute-apps=pid,used_memory", FORMAT)[1]
        assert len(apps) == 2
        assert ["4194399", "5120"] in apps
        os.kill(engine, signal.SIGKILL)
        sim.exit()
    assert ask(stub, "--query-compute-apps=pid,used_memory", FORMAT)[1] == [["4194399", "5120"]]
    assert ask(stub, "--query-gpu=memory.used", FORMAT)[1] == [["5120"]]


def test_neighbour_leaves_when_the_fault_is_taken_back(tmp_path: Path) -> None:
    state = tmp_path / "card.csv"
    stub = write_stub(tmp_path / "bin", state)
    with Standin("--sim-smi", str(state), "--gpu-memory-utilization", "0.5") as sim:
        sim.ready()
        assert sim.request("POST", "/sim/fault", {"name": "oom-neighbour", "arg": 8})[0] == 200
        assert sim.complete(2)[0] == 200
        assert len(ask(stub, "--query-compute-apps=pid", FORMAT)[1]) == 2
        assert sim.request("DELETE", "/sim/fault")[0] == 200
        assert sim.complete(2)[0] == 200
        assert len(ask(stub, "--query-compute-apps=pid", FORMAT)[1]) == 1


def test_headers_units_and_wrong_fields(tmp_path: Path) -> None:
    state = tmp_path / "card.csv"
    state.write_text("gpu,0,GPU-1,NVIDIA H200,143156,9.0\nnonsense\n")
    stub = write_stub(tmp_path / "bin", state)
    assert ask(stub, "--query-gpu=name,memory.total", "--format=csv") == (
        0,
        [["name", "memory.total [MiB]"], ["NVIDIA H200", "143156 MiB"]],
    )
    assert ask(stub, "--query-gpu=utilization.gpu", FORMAT) == (0, [["[N/A]"]])
    code, lines = ask(stub, "--query-gpu=luck", FORMAT)
    assert code == 2
    assert "is not a valid field" in lines[0][0]
    assert ask(stub, "-L")[1] == [["GPU 0: NVIDIA H200 (UUID: GPU-1)"]]
