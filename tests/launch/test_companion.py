"""A watcher that the launcher owns: kept alive, never in the server's way, last to go."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.launch.harness import Factory, Launched, alive, free_port, until

WATCHER = """
import os, signal, sys, time
folder = sys.argv[1]
def stop(*_):
    time.sleep(0.3)
    open(folder + "/finished", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, lambda *_: open(folder + "/reloaded", "w").close())
with open(folder + "/pids", "a") as file:
    file.write(f"{os.getpid()} {os.environ['VLLM_AGENT_RUN_DIR']}\\n")
while True:
    time.sleep(0.1)
"""


def pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


async def with_watcher(launch: Factory, tmp_path: Path) -> tuple[Launched, int]:
    argv = json.dumps([sys.executable, "-c", WATCHER, str(tmp_path)])
    launched = launch("--port", str(free_port()), options=("--watcher", argv))
    ready = await launched.ready()
    await until(lambda: pids(tmp_path))
    return launched, int(str(ready["pid"]))


async def test_a_killed_watcher_comes_back_unnoticed(launch: Factory, tmp_path: Path) -> None:
    launched, server = await with_watcher(launch, tmp_path)
    (first,) = pids(tmp_path)
    assert (tmp_path / "pids").read_text().split()[1] == str(launched.run_dir)
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(pids(tmp_path)) == 2)
    status = await launched.status()
    assert status["child_pid"] == server and status["restarts"] == 0


async def test_an_asked_stop_lets_the_watcher_finish(launch: Factory, tmp_path: Path) -> None:
    launched, server = await with_watcher(launch, tmp_path)
    launched.process.send_signal(signal.SIGHUP)
    await until(lambda: (tmp_path / "reloaded").exists())
    launched.process.send_signal(signal.SIGTERM)
    assert await launched.ended() == 0
    assert (tmp_path / "finished").exists()
    assert not alive(server) and not alive(pids(tmp_path)[0])


async def test_kill_9_of_the_launcher_ends_the_watcher_too(launch: Factory, tmp_path: Path) -> None:
    launched, server = await with_watcher(launch, tmp_path)
    launched.process.kill()
    await until(lambda: not alive(server) and not alive(pids(tmp_path)[0]))
    assert (tmp_path / "finished").exists(), "by SIGTERM first"


async def test_a_watcher_that_cannot_be_run_costs_only_the_watcher(launch: Factory) -> None:
    launched = launch("--port", str(free_port()), options=("--watcher", '["/no/such/watcher"]'))
    await launched.ready()
    notice = await launched.event("notice")
    assert "watcher" in str(notice["text"])
