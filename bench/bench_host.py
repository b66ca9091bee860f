"""What one look at the host costs, and what the loop of the watcher and the launcher have of it.

In: this process and its own children as the server. Out: microseconds of a round as a whole (with its threads), and
of the loop's thread alone, for a server of one process and of sixteen.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from frame import Report

from agent.collect import HostReader, LocalHost

ROUNDS = 300
BUDGET_MS = 3.0


async def measure(report: Report, pids: Sequence[int]) -> None:
    """Rounds one after another; sizes of file systems are read in the first alone, as every 30 s in a watcher."""
    reader = HostReader("bench", LocalHost())
    reading = await reader.read(pids)
    whole, loop = [], []
    process = time.process_time()
    for _ in range(ROUNDS):
        begun, own = time.perf_counter(), time.thread_time()
        await reader.read(pids)
        whole.append((time.perf_counter() - begun) * 1e6)
        loop.append((time.thread_time() - own) * 1e6)
    cpu = (time.process_time() - process) / ROUNDS * 1e3
    name = f"{len(pids)} processes, {len(reading.samples)} samples"
    report.row(f"{name}: CPU of a round, all threads", cpu, "ms", BUDGET_MS)
    report.row(f"{name}: a round from call to answer, median", statistics.median(whole) / 1e3, "ms")
    report.row(f"{name}: of it the loop's own thread, median", statistics.median(loop) / 1e3, "ms")
    report.add(**{f"processes_{len(pids)}": {"cpu_ms": cpu, "whole_us": sorted(whole), "loop_us": sorted(loop)}})


async def main() -> None:
    """Sixteen children that sleep stand for a server's workers."""
    report = Report("host", "the host, the container and the server's processes, read here")
    sleeper = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    children = [subprocess.Popen(sleeper, stdin=subprocess.PIPE) for _ in range(15)]  # noqa: ASYNC220
    try:
        await measure(report, [os.getpid()])
        await measure(report, [os.getpid(), *(child.pid for child in children)])
    finally:
        for child in children:
            child.kill()
            child.wait()
    report.done()


if __name__ == "__main__":
    asyncio.run(main())
