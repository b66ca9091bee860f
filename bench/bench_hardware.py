"""What one look at the cards costs the watcher, and what asking costs the driver's process.

In: eight cards of a driver stand-in (its own calls cost microseconds; a real driver's are measured by ``bench/h200``,
case ``nvml``). Out: processor time of a round in the watcher, from the request to samples, and in the driver's process.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from frame import Report, scratch

from agent.collect import GpuRounds, LocalGpu
from tests.hardware.cards import SERVER, process
from tests.hardware.fake_driver import FakeDriver, build

CARDS = 8
ROUNDS = 200
BUDGET_MS = 3.0


def spent(pid: int) -> float:
    """Processor seconds of one process."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(report: Report, source: LocalGpu, *, costly: bool) -> None:
    """Rounds one after another."""
    rounds = GpuRounds("bench", source)
    reading = await rounds.read(0.0, asked=True, pids=[SERVER])
    while not reading.samples:
        reading = await rounds.read(0.0, asked=True, pids=[SERVER])
    assert source.driver_pid is not None
    driver, own, whole = spent(source.driver_pid), [], []
    for _ in range(ROUNDS):
        begun, thread = time.perf_counter(), time.thread_time()
        await rounds.read(1.0, asked=costly, pids=[SERVER])
        whole.append((time.perf_counter() - begun) * 1e3)
        own.append((time.thread_time() - thread) * 1e3)
    asked = (spent(source.driver_pid) - driver) / ROUNDS * 1e3
    name = f"{CARDS} cards, {'costly' if costly else 'cheap'} round"
    report.row(f"{name}: CPU of the watcher, median", statistics.median(own), "ms", BUDGET_MS)
    report.row(f"{name}: from request to samples, median", statistics.median(whole), "ms")
    report.row(f"{name}: CPU of the driver's process", asked, "ms")
    report.add(
        **{"costly" if costly else "cheap": {"own_ms": sorted(own), "whole_ms": sorted(whole), "driver_ms": asked}}
    )


async def main() -> None:
    """One server with eight cards."""
    report = Report("hardware", "the cards, from the driver's process to samples")
    with scratch() as folder:
        driver = FakeDriver(Path(folder) / "state", build(Path(folder) / "lib"))
        driver.set(*({"processes": 1} for _ in range(CARDS)))
        proc = process(Path(folder) / "proc", environment={})
        source = LocalGpu(proc=proc, environment=driver.environment())
        try:
            await measure(report, source, costly=False)
            await measure(report, source, costly=True)
        finally:
            source.close()
    report.done()


if __name__ == "__main__":
    asyncio.run(main())
