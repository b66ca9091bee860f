"""What all benchmarks share: rows of budget against measured, the cost of a command, and the stand-in as target.

In: figures. Out: one printed line a figure, and JSON under bench/results with command, machine, date and raw values
(:mod:`tests.support.figures`). A missed budget is printed as MISSED and never hidden; it fails nothing, since the
machine may be shared: the load average stands beside the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.figures import keep, spread  # noqa: E402
from tests.support.processes import free_port  # noqa: E402
from tests.support.supervised import Supervised  # noqa: E402

LOGS = ROOT / "tests" / "data" / "captures" / "logs"
# No budget, breaker or back-off of the agent's may end a run of many faults; the check itself stays.
PATIENT: dict[str, Any] = {
    "budget": {"actions": 1000},
    "breaker": {"failures": 1000},
    "backoff_seconds": [0],
    "verify": {"hold_seconds": 1},
}


class Report:
    """The rows of one benchmark; ``done`` prints nothing more and keeps the figures."""

    def __init__(self, subject: str, about: str) -> None:
        self._subject = subject
        self._before = load()
        self._figures: dict[str, object] = {}
        print(f"{about} (load average {self._before[0]:.2f})", flush=True)

    def row(self, name: str, measured: float, unit: str, budget: float | None = None, *, least: bool = False) -> None:
        """One figure; ``least`` where the budget is a lower bound."""
        judged = "-"
        if budget is not None:
            judged = "ok" if (measured >= budget if least else measured <= budget) else "MISSED"
        bound = "no budget" if budget is None else f"budget {'≥' if least else '≤'} {budget:g} {unit}"
        print(f"  {name:58} {measured:9.2f} {unit:11} {bound:24} {judged}", flush=True)

    def note(self, text: str) -> None:
        """A line of words."""
        print(f"  {text}", flush=True)

    def add(self, **figures: object) -> None:
        """Raw figures for the file."""
        self._figures.update(figures)

    def done(self) -> None:
        """Write the file, where ``VLLM_AGENT_FIGURES`` names a folder."""
        command = f"python bench/{Path(sys.argv[0]).name}"
        loads = {"before": self._before, "after": load()}
        keep(self._subject, command, {"load_average": loads, **self._figures})


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


@dataclass(frozen=True)
class Cost:
    """What one run of a command took; ``rss_mib`` is its peak."""

    seconds: float
    cpu_seconds: float
    rss_mib: float
    code: int


def cost(argv: Sequence[str], *, env: Mapping[str, str] | None = None, output: Path | None = None) -> Cost:
    """Run a command to its end; its output is dropped, or kept in ``output``."""
    with (output or Path(os.devnull)).open("wb") as sink:
        begun = time.perf_counter()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, cwd=ROOT)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, process.returncode)


def compiled(folder: str) -> dict[str, str]:
    """An environment in which Python keeps bytecode in ``folder``, as an installed package has it; an environment
    that forbids bytecode would else have every module of a checkout compiled at each start."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def target(folder: Path, *flags: str, watcher: bool = True) -> Supervised:
    """The stand-in under ``agent run`` (``agent launch`` without the watcher), on free ports."""
    port = free_port()
    command = [sys.executable, "-m", "agent", "sim", "--served-model-name", "tiny", "--port", str(port), *flags]
    environment = compiled(str(folder / "bytecode"))
    return Supervised(folder, command, port, environment=environment, settings=PATIENT, watcher=watcher)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone afterwards."""
    return tempfile.TemporaryDirectory(prefix="vllm-agent-bench-")


__all__ = ["LOGS", "ROOT", "Cost", "Report", "compiled", "cost", "free_port", "load", "scratch", "spread", "target"]
