"""The run-dir: one launcher each, unusable folders named, a full disk survived."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.launch import bundle, default_run_dir
from agent.launch.rundir import open_run_dir
from tests.launch.harness import FAKE, Factory, free_port


async def test_two_launchers_do_not_share_a_run_dir(launch: Factory) -> None:
    first = launch()
    await first.event("started")
    second = launch(run_dir=first.run_dir)
    assert await second.ended() == 64
    text = second.stderr_path.read_text()
    assert "another launcher" in text and str(first.process.pid) in text and "remedy" in text
    assert (await first.status())["child_pid"], "the first one is not disturbed"


async def test_a_run_dir_that_cannot_be_made_is_an_error_with_a_remedy(launch: Factory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    launched = launch(run_dir=tmp_path / "file" / "run")
    assert await launched.ended() not in (0, 70)
    text = (tmp_path / "run.stderr").read_text()
    assert "run-dir cannot be used" in text and "remedy" in text and "Traceback" not in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(descriptor, b"x" * 4096)
    finally:
        os.close(descriptor)


async def test_a_full_disk_at_run_time_stops_nothing(launch: Factory, small_disk: Path) -> None:
    launched = launch("--port", str(free_port()), run_dir=small_disk)
    ready = await launched.ready()
    fill(small_disk / "filler")
    await launched.client.call("restart", reason="on a full disk")
    await launched.event("ready", after=int(str(ready["seq"])))
    status = await launched.status()
    assert status["child_pid"] and int(str(status["log_offset"])) > 0
    text = launched.stderr_path.read_text()
    assert "Traceback" not in text and "No space left" in text
    await launched.client.call("stop")
    assert await launched.ended() == 0


async def test_a_full_disk_at_the_start_is_an_error_with_a_remedy(launch: Factory, small_disk: Path) -> None:
    fill(small_disk / "filler")
    launched = launch(run_dir=small_disk)
    assert await launched.ended() == 1
    text = launched.stderr_path.read_text()
    assert "No space left" in text and "remedy" in text and "Traceback" not in text


async def test_an_exit_on_a_full_disk_is_written_with_the_next_one(small_disk: Path) -> None:
    said: list[str] = []
    folder = open_run_dir(small_disk, said.append)
    fill(small_disk / "filler")
    folder.append_exit({"seq": 1})
    assert "could not be written" in said[0] and folder.last_exit() is None
    (small_disk / "filler").unlink()
    folder.append_exit({"seq": 2})
    lines = (small_disk / "exits.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"v":1,"se', b"\0\xff garbage", b'{"v":1}\n{"v"'])
def test_an_exit_after_a_torn_line_has_a_line_of_its_own(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "exits.jsonl").write_bytes(torn)
    folder = open_run_dir(tmp_path, lambda text: None)
    folder.append_exit({"seq": 7})
    lines = (tmp_path / "exits.jsonl").read_bytes().splitlines()
    assert json.loads(lines[-1]) == {"seq": 7} and folder.last_exit_seq() == 7


def test_the_default_run_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_AGENT_RUN_DIR", raising=False)
    assert default_run_dir() == Path("/run/vllm-agent/default")
    monkeypatch.setenv("VLLM_AGENT_RUN_DIR", "/x")
    assert default_run_dir() == Path("/x")


async def test_the_zipapp_runs_with_the_standard_library_alone(launch: Factory, tmp_path: Path) -> None:
    archive = bundle.build(tmp_path / "dist" / "agent-launch.pyz")
    with zipfile.ZipFile(archive) as opened:
        inside = {name for name in opened.namelist() if not name.endswith("/")}
    allowed = {"__main__.py", "agent/__init__.py", "agent/errors.py"}
    assert allowed <= inside and all(name.startswith("agent/launch/") for name in inside - allowed)
    base = [sys.executable, "-I", "-S", str(archive)]
    usage = await asyncio.to_thread(subprocess.run, base, capture_output=True, text=True, cwd=tmp_path)
    assert usage.returncode == 64 and "remedy" in usage.stderr
    run_dir = tmp_path / "zip-run"
    command = [
        *base,
        "--run-dir",
        str(run_dir),
        "--probe",
        "off",
        "--",
        sys.executable,
        str(FAKE),
        "--exit",
        "2",
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 2, done.stderr
    assert "server starts" in done.stdout and "Traceback" not in done.stderr
