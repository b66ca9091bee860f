"""How a stand-in dies: exit status, what clients see, what the log says; and what cures each fault."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.sim.standin import Standin

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def oom_numbers(log: str) -> dict[str, float]:
    """The sizes of the torch.OutOfMemoryError, in bytes."""
    line = re.search(r"torch\.OutOfMemoryError: (.*)", log)
    assert line, log[-3000:]
    patterns = {
        "request": r"Tried to allocate ([\d.]+ \w+)\.",
        "total": r"total capacity of ([\d.]+ \w+)",
        "free": r"of which ([\d.]+ \w+) is free",
        "mine": r"this process has ([\d.]+ \w+) memory",
        "neighbour": r"Process \d+ has ([\d.]+ \w+) memory",
        "allocated": r"allocated memory ([\d.]+ \w+) is allocated",
        "unallocated": r"and ([\d.]+ \w+) is reserved by PyTorch but unallocated",
    }
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, line.group(1))
        if match:
            number, unit = match.group(1).split()
            found[name] = float(number) * UNITS[unit]
    return found


def check_sum(numbers: dict[str, float]) -> None:
    total = numbers["free"] + numbers["mine"] + numbers.get("neighbour", 0)
    assert total == pytest.approx(numbers["total"], rel=0.001)
    assert numbers["allocated"] + numbers["unallocated"] < numbers["mine"]
    assert numbers["request"] > numbers["free"]


def test_oom_above_a_batch_fails_all_and_exits_0_and_a_smaller_batch_cures_it() -> None:
    with Standin("--fault", "oom-above=8") as sim:
        sim.ready()
        assert [a[0] for a in sim.burst(8)] == [200] * 8
        answers = sim.burst(12, 50)
        assert all(status in (500, 0) for status, _ in answers)
        assert any(status == 500 for status, _ in answers)
        body = json.loads(next(text for status, text in answers if status == 500))
        assert body["error"]["message"].startswith("EngineCore encountered an issue.")
        assert sim.exit() == 0
        numbers = oom_numbers(sim.log)
        check_sum(numbers)
        assert numbers["unallocated"] < numbers["request"]
        assert "neighbour" not in numbers
    with Standin("--max-num-seqs", "64", "--fault", "oom-above=8", "--max-num-seqs", "8") as sim:
        sim.ready()
        assert [a[0] for a in sim.burst(12, 50)] == [200] * 12


def test_oom_limit_in_tokens_is_cured_by_the_token_budget() -> None:
    prompt = "word " * 2000
    with Standin("--fault", "oom-above=1024t") as sim:
        sim.ready()
        sim.burst(1, 2, prompt)
        assert sim.exit() == 0
    with Standin("--fault", "oom-above=1024t", "--max-num-batched-tokens", "1024") as sim:
        sim.ready()
        assert sim.burst(2, 2, prompt)[0][0] == 200


def test_fragmented_oom_is_cured_by_expandable_segments_at_the_same_batch() -> None:
    with Standin("--fault", "oom-fragmented=4") as sim:
        sim.ready()
        sim.burst(10, 50)
        assert sim.exit() == 0
        numbers = oom_numbers(sim.log)
        check_sum(numbers)
        assert numbers["unallocated"] >= numbers["request"]
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        with Standin("--fault", "oom-fragmented=4", env={name: "expandable_segments:True"}) as sim:
            sim.ready()
            assert [a[0] for a in sim.burst(10, 50)] == [200] * 10


def test_neighbour_is_named_and_a_smaller_share_fits_beside_it() -> None:
    with Standin("--fault", "oom-neighbour=20") as sim:
        sim.ready()
        sim.burst(2)
        assert sim.exit() == 0
        numbers = oom_numbers(sim.log)
        check_sum(numbers)
        assert numbers["neighbour"] == pytest.approx(20 * UNITS["GiB"])
    with Standin("--fault", "oom-neighbour=20", "--gpu-memory-utilization", "0.72") as sim:
        sim.ready()
        assert [a[0] for a in sim.burst(2)] == [200] * 2


def test_neighbour_stays_on_the_card_when_a_state_file_holds_it(tmp_path: Path) -> None:
    state = str(tmp_path / "card.csv")
    with Standin("--sim-smi", state) as sim:
        sim.ready()
        assert sim.request("POST", "/sim/fault", {"name": "oom-neighbour", "arg": 20})[0] == 200
        sim.burst(1)
        assert sim.exit() == 0
    with Standin("--sim-smi", state) as sim:
        assert sim.exit() == 1
        assert "Free memory on device cuda:0 (59.5/80.0 GiB) on startup is less than desired GPU memory" in sim.log
    with Standin("--sim-smi", state, "--gpu-memory-utilization", "0.74") as sim:
        sim.ready()
        assert sim.complete()[0] == 200


def test_killed_engine_ends_the_server_with_0_and_streams_with_200_and_an_error() -> None:
    with Standin("--sim-step-seconds", "0.05") as sim:
        sim.ready()
        answers: list[tuple[int, str]] = []
        thread = threading.Thread(target=lambda: answers.extend(sim.burst(32, 400, stream=True)))
        thread.start()
        until = time.monotonic() + 15
        while sim.metric("vllm:num_requests_running") < 32 and time.monotonic() < until:
            time.sleep(0.05)
        began = time.monotonic()
        os.kill(sim.engine(), signal.SIGKILL)
        assert sim.exit() == 0
        assert time.monotonic() - began < 5
        thread.join()
        assert [a[0] for a in answers] == [200] * 32
        for _, text in answers:
            assert text.rstrip().endswith("data: [DONE]")
            assert '"type": "InternalServerError"' in text
        log = sim.log
        assert "engine core exited unexpectedly; starting cleanup" in log
        assert log.count("Error in completion stream generator.") == 32
        assert log.count(" ERROR ") > 4000


def test_exit0_at_the_next_request_or_after_seconds() -> None:
    with Standin("--fault", "exit0") as sim:
        sim.ready()
        sim.burst(1)
        assert sim.exit() == 0
    with Standin("--fault", "exit0=0.3") as sim:
        assert sim.exit() == 0
        assert "startup complete" in sim.log


def test_hang_freezes_gauges_while_health_stays_200_and_ends_when_taken_back() -> None:
    with Standin("--sim-hang-notice", "0.2") as sim:
        sim.ready()
        assert sim.request("POST", "/sim/fault", {"name": "hang"})[0] == 200
        answers: list[tuple[int, str]] = []
        thread = threading.Thread(target=lambda: answers.extend(sim.burst(3, 10)))
        thread.start()
        until = time.monotonic() + 10
        while sim.metric("vllm:num_requests_running") < 1 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        before = sim.metric("vllm:generation_tokens_total")
        time.sleep(0.3)
        assert sim.metric("vllm:generation_tokens_total") == before
        assert sim.metric("vllm:num_requests_running") >= 1
        assert sim.get("/health")[0] == 200
        notices = [line for line in sim.log.splitlines() if "No available shared memory broadcast" in line]
        assert notices
        assert " INFO " in notices[0]
        assert sim.request("DELETE", "/sim/fault", {"name": "hang"})[0] == 200
        thread.join()
        assert [a[0] for a in answers] == [200] * 3


def test_hang_ends_in_vllms_own_timeout() -> None:
    with Standin("--fault", "hang", env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "0.3"}) as sim:
        sim.ready()
        sim.burst(1)
        assert sim.exit() == 0
        assert "RPC call to execute_model timed out." in sim.log


def test_sigterm_aborts_and_exits_0() -> None:
    with Standin("--sim-step-seconds", "0.05") as sim:
        sim.ready()
        answers: list[tuple[int, str]] = []
        thread = threading.Thread(target=lambda: answers.extend(sim.burst(2, 400, stream=True)))
        thread.start()
        time.sleep(0.5)
        assert sim.terminate() == 0
        thread.join()
        assert all('"finish_reason": "abort"' in text and "[DONE]" in text for _, text in answers)
        assert "[shutdown] API server: shutdown triggered" in sim.log
        assert "mode=abort timeout=0s" in sim.log


def test_sigterm_to_the_whole_group_is_a_stop_and_no_death() -> None:
    with Standin() as sim:
        sim.ready()
        os.kill(sim.engine(), signal.SIGTERM)
        assert sim.terminate() == 0
        assert "shutdown triggered" in sim.log
        assert "exited unexpectedly" not in sim.log


def test_sigterm_with_a_shutdown_timeout_drains() -> None:
    with Standin("--shutdown-timeout", "20", "--sim-step-seconds", "0.02") as sim:
        sim.ready()
        answers: list[tuple[int, str]] = []
        thread = threading.Thread(target=lambda: answers.extend(sim.burst(3, 40)))
        thread.start()
        time.sleep(0.4)
        sim.process.send_signal(signal.SIGTERM)
        time.sleep(0.15)
        assert sim.get("/health")[0] == 200
        late = sim.complete(1)
        assert late[0] == 500
        assert "cannot schedule new futures after shutdown" in late[1]
        thread.join()
        assert [a[0] for a in answers] == [200] * 3
        assert sim.exit() == 0
        assert "draining in-flight requests count=3" in sim.log


def test_a_killed_api_server_leaves_no_engine() -> None:
    with Standin() as sim:
        sim.ready()
        engine = sim.engine()
        sim.process.kill()
        sim.exit()
        until = time.monotonic() + 10
        while Path(f"/proc/{engine}").exists() and time.monotonic() < until:
            if Path(f"/proc/{engine}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                break
            time.sleep(0.02)
        else:
            assert not Path(f"/proc/{engine}").exists()


def test_slow_answers_are_slow() -> None:
    with Standin("--fault", "slow-answers=0.2") as sim:
        sim.ready()
        began = time.monotonic()
        assert sim.complete(3)[0] == 200
        assert time.monotonic() - began >= 0.6


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("[", "no JSON object"),
        ({"name": "gremlin"}, "unknown fault"),
        ({"name": "ptxas"}, "at the start only"),
    ],
)
def test_faults_at_run_time_that_cannot_be_are_refused(body: object, text: str) -> None:
    with Standin() as sim:
        sim.ready()
        status, answer = sim.request("POST", "/sim/fault", body)
        assert status == 400
        assert text in answer
        assert json.loads(answer)["remedy"]
