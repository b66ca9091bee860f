"""How fast a death is seen, and what the agent adds to the server's own start: 20 killed engines, 20 killed servers.

In: ``agent run`` around the stand-in, whose start takes two seconds. Out: milliseconds from the exit (the launcher's
record) to the opened incident (the watcher's; below zero where a fatal line told first), and seconds from the kill
until ``/health`` answers again, less the stand-in's own start, which is measured five times without an agent.
Budgets: 100 ms for p95; 2 s for the overhead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from frame import Report, free_port, scratch, spread, target

from tests.support.supervised import Supervised, fetch

KILLS = 20
STARTS = 5
START = ("--sim-start-seconds", "2")


def wait_health(url: str, seconds: float = 60.0) -> float:
    """Seconds until ``/health`` answers, looked at every 10 ms."""
    begun = time.monotonic()
    while True:
        try:
            fetch(url + "/health", 2.0)
            return time.monotonic() - begun
        except OSError:
            if time.monotonic() - begun > seconds:
                raise
            time.sleep(0.01)


def own_start(folder: Path) -> float:
    """The stand-in alone, from its start to its first answer."""
    port = free_port()
    command = target(folder).command
    argv = [*command[: command.index("--port") + 1], str(port), *START]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return wait_health(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


def kill(agent: Supervised, number: int, victim: str) -> dict[str, float]:
    """One kill; seconds from exit to incident and from kill to service."""
    status = agent.status()
    process = agent.engine()
    assert status is not None and process is not None, agent.picture()
    killed, killed_at = time.monotonic(), time.time()
    os.kill(process.pid if victim == "engine" else status["pid"], signal.SIGKILL)
    record = agent.wait_exits(number + 1)
    wait_health(agent.url)
    back = time.monotonic() - killed
    incident = agent.wait_incident(60, index=number, states=("resolved",))
    agent.wait_state("serving", 60)
    opened, exited = (datetime.fromisoformat(text) for text in (_utc(incident["opened_at"]), _utc(record["exited_at"])))
    return {
        "exited_to_opened": (opened - exited).total_seconds(),
        "killed_to_opened": opened.timestamp() - killed_at,
        "killed_to_serving": back,
    }


def _utc(text: str) -> str:
    return text.replace("Z", "+00:00")


def main() -> int:
    report = Report("deaths", f"deaths of the stand-in, {KILLS} of each kind")
    with scratch() as folder:
        starts = [own_start(Path(folder) / "alone") for _ in range(STARTS)]
    own = spread(starts)["p50"]
    report.row("the stand-in's own start, median", own, "s")
    report.add(unit="seconds", own_start=starts)
    for victim in ("engine", "server"):
        with scratch() as folder, target(Path(folder), *START) as agent:
            agent.wait_state("serving", 60)
            kills = [kill(agent, number, victim) for number in range(KILLS)]
        opened = [one["exited_to_opened"] * 1000 for one in kills]
        added = [one["killed_to_serving"] - own for one in kills]
        report.row(f"{victim} killed: exit → incident opened, p95", spread(opened)["p95"], "ms", 100)
        report.row(f"{victim} killed: exit → incident opened, worst", max(opened), "ms")
        seen = [one["killed_to_opened"] * 1000 for one in kills]
        report.row(f"{victim} killed: kill → incident opened, p95", spread(seen)["p95"], "ms")
        report.row(f"{victim} killed: kill → serving, above own start, p50", spread(added)["p50"], "s", 2)
        report.row(f"{victim} killed: kill → serving, above own start, worst", max(added), "s", 2)
        report.add(
            **{victim: {"opened_ms": spread(opened), "seen_ms": spread(seen), "added_s": spread(added), "raw": kills}}
        )
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
