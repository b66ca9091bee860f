"""Starts that fail: vLLM's words, its exit status, and that the change which vLLM's words ask for makes it
start."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.sim.standin import Standin


def fails(*args: str, code: int = 1, env: dict[str, str] | None = None) -> str:
    """Run a start that must fail with this status; its log."""
    with Standin(*args, env=env) as sim:
        assert sim.exit() == code
        return sim.log


def starts(*args: str, env: dict[str, str] | None = None) -> str:
    with Standin(*args, env=env) as sim:
        sim.ready()
        assert sim.complete(2)[0] == 200
        return sim.log


def test_kv_too_small_names_the_length_that_then_starts() -> None:
    operator = ("--fault", "kv-too-small", "--max-model-len", "8192")
    log = fails(*operator)
    found = re.search(
        r"max seq len \((\d+)\), \(([\d.]+) GiB KV cache is needed, which is larger than the available "
        r"KV cache memory "
        r"\(([\d.]+) GiB\)\. Based on the available memory, the estimated maximum model length is (\d+)\.",
        log,
    )
    assert found
    assert int(found.group(1)) == 8192
    assert float(found.group(2)) > float(found.group(3))
    estimate = int(found.group(4))
    assert estimate < 8192
    assert "Failed core proc(s): {}" in log
    starts(*operator, "--max-model-len", str(estimate))
    fails(*operator, "--max-model-len", str(estimate + 1))


def test_pool_too_small_by_arithmetic_is_cured_by_what_the_text_says() -> None:
    base = ("--sim-gpu-gib", "24", "--sim-weights-gib", "16", "--gpu-memory-utilization", "0.8")
    log = fails(*base)
    estimate = re.search(r"estimated maximum model length is (\d+)", log)
    assert estimate
    starts(*base, "--max-model-len", estimate.group(1))


def test_no_memory_for_blocks() -> None:
    log = fails("--sim-gpu-gib", "20", "--sim-weights-gib", "16", "--gpu-memory-utilization", "0.8")
    assert "ValueError: No available memory for the cache blocks." in log


def test_weights_that_do_not_fit() -> None:
    log = fails("--sim-gpu-gib", "24", "--sim-weights-gib", "30")
    assert "Failed to load model - not enough GPU memory." in log
    assert "torch.OutOfMemoryError: CUDA out of memory." in log
    starts(
        "--sim-gpu-gib",
        "24",
        "--sim-weights-gib",
        "30",
        "--tensor-parallel-size",
        "2",
        "--max-model-len",
        "4096",
    )


def test_a_pool_asked_for_that_does_not_fit() -> None:
    log = fails("--kv-cache-memory-bytes", "70G")
    assert "torch.OutOfMemoryError" in log
    assert "Available KV cache memory: 40.00 GiB" in starts("--kv-cache-memory-bytes", "40G")


def test_neighbour_before_the_start() -> None:
    log = fails("--fault", "oom-neighbour=30@start")
    assert "Free memory on device cuda:0 (49.5/80.0 GiB) on startup is less than desired GPU memory utilization" in log
    assert "(0.92, 73.6 GiB)" in log
    starts("--fault", "oom-neighbour=30@start", "--gpu-memory-utilization", "0.6")


def pool(*args: str) -> float:
    found = re.search(r"Available KV cache memory: ([\d.]+) GiB", starts(*args))
    assert found
    return float(found.group(1))


def test_a_smaller_batch_gives_its_memory_to_the_pool_unless_it_is_held() -> None:
    big = pool("--max-num-batched-tokens", "65536", "--max-num-seqs", "1024", "--enforce-eager")
    small = pool("--max-num-batched-tokens", "32768", "--max-num-seqs", "512", "--enforce-eager")
    held = pool("--max-num-batched-tokens", "32768", "--max-num-seqs", "512", "--kv-cache-memory-bytes", "40G")
    assert small - big == pytest.approx(2.0, abs=0.02)
    assert held == 40.0


def make_ptxas(folder: Path, release: str) -> str:
    folder.mkdir()
    path = folder / "ptxas"
    path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.93"\n')
    path.chmod(0o755)
    return str(path)


def test_ptxas_fails_until_the_right_variable_names_a_new_enough_one(tmp_path: Path) -> None:
    new, old = make_ptxas(tmp_path / "new", "13.0"), make_ptxas(tmp_path / "old", "12.0")
    fault = ("--fault", "ptxas")
    log = fails(*fault)
    assert "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error" in log
    assert "ptxas fatal   : Value 'sm_90a' is not defined for option 'gpu-name'" in log
    assert f"Repro command: {old} " in fails(*fault, env={"TRITON_PTXAS_PATH": old})
    fails(*fault, env={"TRITON_PTXAS_PATH": "/nowhere/ptxas"})
    fails(*fault, env={"TRITON_PTXAS_BLACKWELL_PATH": new})
    starts(*fault, env={"TRITON_PTXAS_PATH": new})
    fails(*fault, "--sim-arch", "100", env={"TRITON_PTXAS_PATH": new})
    starts(*fault, "--sim-arch", "100", env={"TRITON_PTXAS_BLACKWELL_PATH": new})


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (
            ("--max-concurrent-requests", "5"),
            2,
            "vllm: error: unrecognized arguments: --max-concurrent-requests 5",
        ),
        (("--dp", "8"), 2, "ambiguous option: --dp could match"),
        (("--max-num-seqs", "many"), 2, "invalid human_readable_int value: 'many'"),
        (("--max-num-seqs",), 2, "expected one argument"),
        (("--max-num-seqs", "0"), 1, "2 validation errors for SchedulerConfig"),
        (
            ("--max-num-seqs", "100000"),
            1,
            "max_num_batched_tokens (8192) must be greater than or equal to max_num_seqs (100000).",
        ),
        (("--gpu-memory-utilization", "1.5"), 1, "1 validation error for CacheConfig"),
        (
            ("--max-model-len", "200000"),
            1,
            "User-specified max_model_len (200000) is greater than the derived",
        ),
        (("--fault", "gremlin"), 64, "remedy: Use one of: exit0, oom-above"),
        (("--fault", "oom-above=lots"), 64, "remedy: Write oom-above=8."),
        (("--sim-gpu-gib", "big"), 64, "is no number"),
        (("--sim-vllm-version", "9"), 64, "remedy: Use one of 0.32.0"),
    ],
)
def test_refused_command_lines(args: tuple[str, ...], code: int, text: str) -> None:
    log = fails(*args, code=code)
    assert text in log
    assert code == 1 or "Traceback" not in log


def test_port_in_use_is_found_before_the_engine_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Standin(port=taken.getsockname()[1]) as sim:
        assert sim.exit() == 1
        assert "OSError: [Errno 98] Address already in use" in sim.log
        assert "EngineCore" not in sim.log


def test_slow_load_shows_progress_and_can_be_stopped() -> None:
    with Standin("--fault", "slow-load=0.4") as sim:
        sim.ready()
        assert " 50% Completed | 2/4" in sim.log
    with Standin("--fault", "slow-load=60") as sim:
        while "shards:   0%" not in sim.log:
            pass
        engine = sim.engine()
        sim.terminate()
        assert not Path(f"/proc/{engine}").exists()


def test_any_real_flag_is_taken_in_any_spelling() -> None:
    args = ["tiny", "--dtype", "bfloat16", "-tp", "1", "-O3", "--served-model-name", "a", "b"]
    args += ["--compilation-config.cudagraph_mode", "none", "--max_num_seqs=32", "--no-enable-prefix-caching"]
    log = starts(*args, "--enforce-e")
    assert "'max_num_seqs': 32" in log
    assert "'served_model_name': ['a', 'b']" in log
    assert "'enable_prefix_caching': False" in log
    assert "enforce_eager=True" in log
