"""What one file of /proc says about use: memory and processor of the host, and what a process holds.

In: a path. Out: plain values; what cannot be read is None, empty or an OSError as each function says, never zero.
Reads only files that take no lock of the process's memory: ``cmdline`` and ``environ`` can block for ever behind a
process that is stuck in the kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Usage:
    """One process at one look."""

    started_ticks: int
    cpu_seconds: float
    resident_bytes: int
    threads: int


def meminfo(path: Path) -> dict[str, int]:
    """Bytes by key; empty where it cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        key, _, rest = line.partition(":")
        field_ = rest.split()
        if len(field_) == 2 and field_[0].isdigit() and field_[1] == "kB":
            found[key] = int(field_[0]) * 1024
    return found


def cpu_times(path: Path) -> dict[str, float]:
    """Seconds of all processors by mode (proc(5)); an older kernel's shorter line gives fewer modes."""
    try:
        with path.open(errors="replace") as file:
            field_ = file.readline().split()
        if not field_ or field_[0] != "cpu":
            return {}
        tick = os.sysconf("SC_CLK_TCK")
        return {mode: int(value) / tick for mode, value in zip(CPU_MODES, field_[1:], strict=False)}
    except (OSError, ValueError):
        return {}


def usage(path: Path) -> Usage | None:
    """None where the process has ended or the line is another's. Zombies hold nothing."""
    try:
        field_ = path.read_text(errors="replace").rpartition(")")[2].split()
        if field_[0] in "ZX":
            return None
        cpu = (int(field_[11]) + int(field_[12])) / os.sysconf("SC_CLK_TCK")
        return Usage(int(field_[19]), cpu, int(field_[21]) * os.sysconf("SC_PAGE_SIZE"), int(field_[17]))
    except (OSError, ValueError, IndexError):
        return None


def open_fds(folder: Path) -> int:
    """How many descriptors /proc/PID/fd lists. Raises OSError."""
    with os.scandir(folder) as entries:
        return sum(1 for _ in entries)


def max_fds(path: Path) -> int | None:
    """The soft limit; None where there is none. Raises OSError."""
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("Max open files"):
            soft = line.removeprefix("Max open files").split()[:1]
            return int(soft[0]) if soft and soft[0].isdigit() else None
    return None
