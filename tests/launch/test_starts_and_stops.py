"""Asked stops, restarts, signals, a drain; what the launcher itself leaves with."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.launch.harness import Factory, alive, free_port


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_an_asked_stop(launch: Factory, number: int) -> None:
    launched = launch()
    await launched.event("started")
    await launched.wait_for(lambda: _printed(launched, "server starts"))
    launched.process.send_signal(number)
    assert await launched.ended() == 0
    (record,) = launched.exits()
    assert record["asked"] is True
    assert signal.Signals(number).name in str(record["reason"])
    assert not (launched.run_dir / "control.sock").exists()


async def _printed(launched: object, text: str) -> bool:
    return text in await launched.text()  # type: ignore[attr-defined]


async def test_a_server_that_ignores_sigterm_is_killed_after_the_stop_timeout(launch: Factory) -> None:
    launched = launch("--term", "ignore", options=("--stop-timeout", "0.5"))
    await launched.wait_for(lambda: _printed(launched, "VLLM_USE_DEEP_GEMM"))
    await asyncio.sleep(0.3)
    pid = (await launched.status())["child_pid"]
    launched.process.send_signal(signal.SIGTERM)
    assert await launched.ended() == 0
    assert launched.exits()[0]["signal"] == 9
    assert not alive(int(str(pid)))


async def test_a_hangup_ends_nothing(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    launched.process.send_signal(signal.SIGHUP)
    await asyncio.sleep(0.3)
    assert (await launched.status())["child_pid"]


async def test_restart_by_verb_starts_a_new_process_at_once(launch: Factory) -> None:
    port = free_port()
    launched = launch("--port", str(port))
    first = await launched.ready()
    await launched.client.call("restart", reason="try")
    again = await launched.event("ready", after=int(str(first["seq"])))
    assert again["pid"] != first["pid"]
    assert launched.exits()[0]["asked"] is True
    assert (await launched.status())["restarts"] == 1
    assert (await launched.status())["failures_in_window"] == 0


async def test_stop_by_verb_leaves_with_zero_and_no_failure(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    await launched.client.call("stop")
    assert await launched.ended() == 0


async def test_drain_turns_readiness_off_and_waits_for_requests(launch: Factory) -> None:
    port = free_port()
    launched = launch("--port", str(port), probe=True)
    await launched.ready()
    await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/set/running/3")
    await launched.client.call("drain", timeout=30)
    await asyncio.sleep(1.2)
    status = await launched.status()
    assert status["state"] == "draining"
    assert status["child_pid"], "requests are in flight, so the server still runs"
    await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/set/running/0")
    assert await launched.ended() == 0
    assert launched.exits()[0]["asked"] is True


async def test_an_unknown_program_is_a_usage_error(launch: Factory) -> None:
    launched = launch(command=["no-such-program-here"])
    assert await launched.ended() == 64
    text = launched.stderr_path.read_text()
    assert "no-such-program-here" in text and "remedy" in text and "Traceback" not in text


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--"],
        ["--nonsense", "--", "true"],
        ["--probe", "nowhere", "--", "true"],
        ["--watcher", "{", "--", "true"],
        ["--stop-timeout", "-3", "--", "true"],
    ],
)
def test_wrong_usage_exits_64_with_a_remedy(argv: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "agent.launch", *argv], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64
    assert "remedy" in done.stderr and "Traceback" not in done.stderr


async def test_the_child_gets_the_run_dir_and_default_signals(launch: Factory) -> None:
    launched = launch()
    await launched.wait_for(lambda: _printed(launched, "VLLM_USE_DEEP_GEMM"))
    assert f"env VLLM_AGENT_RUN_DIR={launched.run_dir}" in await launched.text()
    pid = int(str((await launched.status())["child_pid"]))
    assert os.getsid(pid) == pid, "a session of its own"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line for line in lines if line.startswith("SigIgn"))
    assert not int(ignored.split()[1], 16) & (1 << (signal.SIGHUP - 1))


async def test_a_stop_right_after_the_start_is_not_lost(launch: Factory, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "overrides.json").write_text("{}")  # so that the start first looks around
    launched = launch(run_dir=run_dir)
    await launched.up()
    launched.process.send_signal(signal.SIGTERM)
    assert await launched.ended() == 0


def test_closed_standard_descriptors_do_no_harm(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launch = f"{sys.executable} -m agent.launch --run-dir {run_dir} --probe off"
    script = f"{launch} -- sh -c 'echo text; exit 2' <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", script], timeout=30)
    assert done.returncode == 2
    assert "text" not in (run_dir / "lock").read_text()


def test_as_pid_1_it_reaps_and_ends_what_it_adopted(tmp_path: Path) -> None:
    """In a PID namespace of its own, as in a container."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("PID namespaces are not allowed here")
    server = "(sleep 0.1 &) ; (sleep 60 &) ; sleep 1; cat /proc/[0-9]*/stat; exit 2"
    launch = [sys.executable, "-m", "agent.launch", "--run-dir", str(tmp_path / "run"), "--probe", "off"]
    argv = [*unshare, *launch, "--", "sh", "-c", server]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=40)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "(sleep) S 1 " in done.stdout, "the long one was adopted"
    assert ") Z " not in done.stdout, "the short one was reaped"
