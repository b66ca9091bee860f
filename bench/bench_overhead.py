"""What the agent costs a server's throughput: the same burst with and without ``agent run`` around the stand-in.

In: pairs of fresh servers, one bare and one under the agent, in alternating order, each answering the same burst.
Out: the change of requests a second per pair, its median, and the same of pairs in which both are bare (A/A): a
difference within that spread is no difference. No budget: the spread says what can be told apart.

The stand-in's engine steps every 10 ms, as a small model does on one card, and so leaves the processor idle between
steps as a real server does; ``bound`` steps as fast as it can and shows the worst case, a server that is bound by the
processor on a machine of two cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_deaths import wait_health
from frame import Report, load, scratch, target

from tests.support.load import Shape, run_burst
from tests.support.processes import Process, subtree

PAIRS = 5
SETTLE_SECONDS = 2.0  # the first looks of a new watcher are start-up, not steady cost
KINDS = {
    "steps of 10 ms": (("--sim-step-seconds", "0.01"), Shape(requests=160, concurrency=16, max_tokens=32, stream=True)),
    "bound": (("--sim-step-seconds", "0.0001"), Shape(requests=3000, concurrency=16, max_tokens=16, stream=True)),
}


@contextmanager
def bare(folder: Path, flags: tuple[str, ...]) -> Iterator[str]:
    agent = target(folder, *flags)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.log").open("wb") as log:
        process = subprocess.Popen(agent.command, stdout=log, stderr=log)
    family: list[Process] = []
    try:
        wait_health(agent.url)
        family = subtree(process.pid)
        yield agent.url
    finally:
        process.terminate()
        process.wait(30)
        assert not any(member.alive() for member in family), "the stand-in left a process"


@contextmanager
def agent_run(folder: Path, flags: tuple[str, ...]) -> Iterator[str]:
    with target(folder, *flags) as agent:
        agent.wait_state("serving", 60)
        yield agent.url


def rate(way: str, flags: tuple[str, ...], shape: Shape) -> float:
    """Requests a second of one fresh server."""
    with scratch() as folder, (bare if way == "bare" else agent_run)(Path(folder), flags) as url:
        time.sleep(SETTLE_SECONDS)
        run_burst(url, Shape(requests=16, concurrency=16, max_tokens=4))
        outcomes = run_burst(url, shape)
    assert outcomes.lost == 0, outcomes.summary()
    return round(shape.requests / outcomes.seconds, 2)


def changes(second: str, flags: tuple[str, ...], shape: Shape) -> tuple[list[float], list[dict[str, object]]]:
    """Percent by which ``second`` is faster than a bare server, pair by pair; who goes first alternates."""
    percents: list[float] = []
    raw: list[dict[str, object]] = []
    for number in range(PAIRS):
        if number % 2 == 0:
            one = rate("bare", flags, shape)
            two = rate(second, flags, shape)
        else:
            two = rate(second, flags, shape)
            one = rate("bare", flags, shape)
        percents.append(round((two / one - 1) * 100, 2))
        raw.append({"bare": one, "second": two, "first": "bare" if number % 2 == 0 else "second", "load": load()[0]})
    return percents, raw


def main() -> int:
    report = Report("overhead", f"throughput with the agent around the server, {PAIRS} pairs each")
    for name, (flags, shape) in KINDS.items():
        for label, second in (("A/A bare against bare", "bare"), ("A/B agent against bare", "agent")):
            percents, raw = changes(second, flags, shape)
            ordered = sorted(percents)
            middle = (ordered[(PAIRS - 1) // 2] + ordered[PAIRS // 2]) / 2
            report.row(f"{name}: {label}, median", middle, "%")
            report.note(f"    of {ordered[0]:+.1f} to {ordered[-1]:+.1f} %")
            report.add(**{f"{name}, {label}": {"unit": "% of requests a second", "median": middle, "pairs": percents,
                                               "raw": raw}})  # fmt: skip
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
