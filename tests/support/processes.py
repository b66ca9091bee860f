"""Processes as the operating system sees them: whose child, under which title, still there or not.

In: pids and titles. Out: plain records. It never signals a process that the caller did not name. Titles are
read from /proc/PID/cmdline, because vLLM sets them with setproctitle and /proc/PID/comm is cut at 15
characters.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one of the same pid. ``created`` is seconds since the
    epoch.
    """

    pid: int
    title: str
    created: float

    def alive(self) -> bool:
        """Whether it still runs; a zombie is gone."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def describe(process: psutil.Process) -> Process | None:
    """The record of a live process, None where it went away meanwhile."""
    try:
        return Process(process.pid, " ".join(process.cmdline()) or process.name(), process.create_time())
    except psutil.Error:
        return None


def subtree(pid: int) -> list[Process]:
    """All descendants of ``pid``, itself left out; empty where it is gone."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [record for record in map(describe, found) if record is not None]


def titled(pid: int, title: str) -> list[Process]:
    """The descendants of ``pid`` whose title starts with ``title``."""
    return [process for process in subtree(pid) if process.title.startswith(title)]


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
