"""The demo of ``make demo``: it tells the whole story and ends well, and does not end well where nothing was
shown.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "deploy" / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)


@pytest.mark.timeout(240)
def test_it_shows_the_closed_loop_on_the_stand_in_and_says_how_long_it_took() -> None:
    shown = demo("--engine", "sim")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    story = shown.stdout
    assert story.splitlines()[-1].startswith("demo: verified in ")
    steps = ("server: serving", "oom-serving, mechanism batch", "oom-reduce-batch", "64 of 64 answered", "resolved")
    places = [story.find(step) for step in steps]
    assert -1 not in places, dict(zip(steps, places, strict=True))
    assert places == sorted(places), "the story is told in the order in which it happens"
    assert "64 -> 32" in story, "the arithmetic is shown"


@pytest.mark.timeout(120)
def test_it_fails_clearly_where_the_fault_never_acted(tmp_path: Path) -> None:
    shown = demo("--engine", "sim", "--oom-above", "64", "--keep", str(tmp_path / "kept"))
    assert shown.returncode == 1
    assert "demo: FAILED: the first burst was answered" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert (tmp_path / "kept" / "output.log").exists(), "logs are kept for whoever looks into it"
