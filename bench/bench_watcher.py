"""What a watcher costs while nothing is wrong: processor and memory at 1 s polling, for a minute each.

In: ``agent run`` around the stand-in, idle and with a few clients whose access lines flow through the log. Out:
percent of one core and resident memory of the watcher, and of the launcher beside it. Budgets: 0.7 % and 64 MiB.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
from frame import Report, scratch, target

from tests.support.load import BackgroundLoad, Shape
from tests.support.supervised import Supervised

SECONDS = 60.0
SETTLE_SECONDS = 8.0
CLIENTS = Shape(concurrency=4, max_tokens=16)


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(agent: Supervised, report: Report, name: str) -> None:
    watcher = agent.watcher_process()
    assert watcher is not None, agent.picture()
    processes = {"watcher": psutil.Process(watcher.pid), "launcher": psutil.Process(agent.pid)}
    before = {who: used(process) for who, process in processes.items()}
    begun = time.monotonic()
    time.sleep(SECONDS)
    seconds = time.monotonic() - begun
    for who, process in processes.items():
        percent = (used(process) - before[who]) / seconds * 100
        resident = process.memory_info().rss / 2**20
        share, memory = (0.7, 64) if who == "watcher" else (None, None)
        report.row(f"{who}, {name}, {SECONDS:.0f} s", percent, "% of a core", share)
        report.row(f"{who}, {name}, resident", resident, "MiB", memory)
        report.add(**{f"{who}_{name}": {"percent_of_a_core": percent, "resident_mib": resident, "seconds": seconds}})


def main() -> int:
    report = Report("watcher-cost", "a watcher at 1 s polling on the stand-in")
    with scratch() as folder, target(Path(folder)) as agent:
        agent.wait_state("serving", 60)
        for name in ("idle", "with clients"):
            with ExitStack() as stack:
                if name != "idle":
                    stack.enter_context(BackgroundLoad(agent.url, CLIENTS, pause_seconds=0.25))
                time.sleep(SETTLE_SECONDS)
                measure(agent, report, name)
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
