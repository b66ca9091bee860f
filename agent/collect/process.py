"""Processes and memory cgroup of the server: through the launcher, or here when the server runs on this host.

In: the answer of ``probe processes``, or the port that the server listens on. Out: resident bytes, cgroup limit
and its ``oom_kill`` counter, each process with its state letter and CPU seconds, or the reason why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import psutil

from agent.collect.listener import Listener
from agent.model import NotMeasured


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process as /proc/PID/stat shows it: ``state`` is the letter of its main thread (R, S, D, T, t, ...),
    ``cpu_seconds`` what all its threads have used. ``title`` is the command line, where vLLM writes its role.
    """

    pid: int
    ppid: int
    title: str
    state: str
    cpu_seconds: float


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """The server's process tree: number, resident bytes; the cgroup's limit, usage (bytes) and kill counter."""

    processes: int
    resident_bytes: int
    limit_bytes: int | None = None
    usage_bytes: int | None = None
    oom_kill: int | None = None
    members: tuple[ProcessState, ...] = ()


def from_probe(result: Mapping[str, Any]) -> ProcessReading | NotMeasured:
    """Read the launcher's ``probe processes``."""
    processes = result.get("processes")
    if not isinstance(processes, list):
        return NotMeasured(check="processes", reason="the launcher's answer could not be read")
    cgroup = result.get("cgroup") or {}
    return ProcessReading(
        processes=len(processes),
        resident_bytes=sum(int(one.get("rss_bytes") or 0) for one in processes),
        limit_bytes=cgroup.get("limit_bytes"),
        usage_bytes=cgroup.get("usage_bytes"),
        oom_kill=cgroup.get("oom_kill"),
        members=tuple(_member(one) for one in processes if "state" in one and "cpu_seconds" in one),
    )


def _member(one: Mapping[str, Any]) -> ProcessState:
    return ProcessState(
        pid=int(one["pid"]),
        ppid=int(one.get("ppid") or 0),
        title=str(one.get("cmdline") or one.get("name") or ""),
        state=str(one["state"]),
        cpu_seconds=float(one["cpu_seconds"]),
    )


class ListenerProcesses:
    """The tree under the process that listens on ``port`` of this host."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = Listener(port)

    def read(self) -> ProcessReading | NotMeasured:
        """One reading; blocks some milliseconds."""
        owner = self._listener.pid()
        if owner is None:
            return NotMeasured(check="processes", reason=f"no process of this host listens on port {self._port}")
        try:
            root = psutil.Process(owner)
            tree = [root, *root.children(recursive=True)]
            members = tuple(one for one in map(_local, tree) if one is not None)
            resident = sum(one.memory_info().rss for one in tree)
        except psutil.Error as error:
            return NotMeasured(check="processes", reason=f"{type(error).__name__}: {error}")
        return ProcessReading(processes=len(tree), resident_bytes=resident, members=members)


# psutil speaks in words; the letters are the kernel's (Documentation/filesystems/proc.rst).
LETTERS = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_IDLE: "I",
}


def _local(one: psutil.Process) -> ProcessState | None:
    """None where the process ended meanwhile."""
    try:
        with one.oneshot():
            times = one.cpu_times()
            return ProcessState(
                pid=one.pid,
                ppid=one.ppid(),
                title=" ".join(one.cmdline())[:200] or one.name(),
                state=LETTERS.get(one.status(), "?"),
                cpu_seconds=times.user + times.system,
            )
    except psutil.Error:
        return None
