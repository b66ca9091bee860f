"""An answer that cannot be printed is an error in words with an exit code of its own, no verdict and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = [sys.executable, "-m", "agent"]


def run(arguments: list[str], shell_tail: str) -> subprocess.CompletedProcess[str]:
    """The command with its standard output as ``shell_tail`` says."""
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {shell_tail}', "bash", *AGENT, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.log"
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    return path


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["diagnose", "schema", "config"])
def test_a_full_disk_under_the_answer_is_no_verdict(log: Path, command: str) -> None:
    arguments = {"diagnose": ["diagnose", "--log", str(log)], "schema": ["schema", "incident"]}
    done = run(arguments.get(command, ["config", "show"]), ">/dev/full")
    assert done.returncode == 74, done.stderr
    assert "standard output cannot be written" in done.stderr and "remedy" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_standard_output_leaves_the_verdict_in_the_exit_code(log: Path) -> None:
    done = run(["diagnose", "--log", str(log)], ">&-")
    assert (done.returncode, done.stderr) == (2, "")
