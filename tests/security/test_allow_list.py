"""The allow-list against values that were made to slip through it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.errors import LauncherError
from agent.launch.allow import check_env, check_flag, root_only_problem

PROGRAM = "/usr/bin/env"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of root can be made by root alone")


@pytest.mark.parametrize(
    "name",
    ["--max-num-seqs=8", "--max_num_seqs", "max-num-seqs", "--max-num-seqs ", "--max-num-seqs\n", "--MAX-NUM-SEQS",
     "--max-num-seq", "-m", "--", "", None, 7, ["--max-num-seqs"], "--model", "--trust-remote-code", "--max‐num‐seqs"],
)  # fmt: skip
def test_a_flag_under_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(LauncherError) as refusal:
        check_flag(name, "8")
    assert refusal.value.code == "refused"


@pytest.mark.parametrize(
    "value",
    ["-1", "0", "2147483648", "9" * 60000, "1e3", "1_000", "٣٢", "32 --model", "--model", "32\0", "3\n2", "", " ",
     "0x20", "+32", "32.0", "nan", "inf", True, None, float("nan"), float("inf"), 32.5, ["8"], {}, "\ud800", "--32"],
)  # fmt: skip
def test_a_count_is_plain_digits_within_its_bounds(value: object) -> None:
    with pytest.raises(LauncherError) as refusal:
        check_flag("--max-num-seqs", value)
    assert refusal.value.code == "refused" and len(refusal.value.message) < 500


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-0.5", "1.0", "0.04", "1e-1", "0_0.5", "0.5 --x", "．5", "9" * 400, float("nan")]
)
def test_a_share_of_memory_is_a_plain_fraction(value: object) -> None:
    with pytest.raises(LauncherError):
        check_flag("--gpu-memory-utilization", value)


@pytest.mark.parametrize("value", ["0.85", ".85", 0.85, " 0.85 "])
def test_a_good_share_of_memory_is_taken(value: object) -> None:
    _, taken = check_flag("--gpu-memory-utilization", value)
    assert taken is not None and float(taken) == 0.85 and taken == taken.strip()


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PATH", "HOME", "BASH_ENV", "VLLM_PLUGINS",
     "VLLM_API_KEY", "cuda_home", "CUDA_HOME ", "CUDA_HOME=/x", "TRITON_PTXAS_PATH\0", ""],
)  # fmt: skip
@pytest.mark.parametrize("value", ["1", None])
def test_a_variable_that_runs_code_is_neither_set_nor_unset(name: str, value: str | None) -> None:
    with pytest.raises(LauncherError) as refusal:
        check_env(name, value, {})
    assert refusal.value.code == "refused"


@pytest.mark.parametrize(
    "value",
    [
        "/usr/bin/\ud800",
        "/proc/self/root/usr/bin/env",
        "/usr/bin/env\0",
        "/" + "x" * 5000,
        "/usr/bin/env/",
        "env",
        "",
        7,
    ],
)
def test_a_program_path_that_is_no_path_is_refused_without_a_crash(value: object) -> None:
    with pytest.raises(LauncherError) as refusal:
        check_env("TRITON_PTXAS_PATH", value, {})
    assert refusal.value.code == "refused"


@as_root
def test_a_link_that_leads_through_a_strangers_folder_is_refused(tmp_path: Path) -> None:
    base = Path("/opt") / f"agent-test-{os.getpid()}"
    base.mkdir(mode=0o755)
    try:
        middle = tmp_path / "ptxas"
        middle.symlink_to(PROGRAM)
        tmp_path.chmod(0o777)
        (base / "ptxas").symlink_to(middle)
        problem = root_only_problem(str(base / "ptxas"))
        assert problem is not None and "others than root" in problem
        (base / "direct").symlink_to(PROGRAM)
        assert root_only_problem(str(base / "direct")) is None
        assert root_only_problem(f"{base}/../../usr/bin/env") is None
        (base / "loop").symlink_to(base / "loop")
        assert root_only_problem(str(base / "loop")) is not None
        base.chmod(0o775)
        assert root_only_problem(str(base / "direct")) is not None, "a writable group counts, even root's"
    finally:
        for path in base.iterdir():
            path.unlink()
        base.rmdir()
