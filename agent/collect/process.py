"""Processes and memory cgroup of the server: through the launcher, or here when the server runs on this host.

In: the answer of ``probe processes``, or the port that the server listens on. Out: resident bytes, cgroup limit
and its ``oom_kill`` counter, or the reason why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import psutil

from agent.model import NotMeasured


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """The server's process tree: number, resident bytes; the cgroup's limit, usage (bytes) and kill counter."""

    processes: int
    resident_bytes: int
    limit_bytes: int | None = None
    usage_bytes: int | None = None
    oom_kill: int | None = None


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
    )


def of_listener(port: int) -> ProcessReading | NotMeasured:
    """The tree under the process that listens on ``port`` of this host."""
    try:
        owner = next(
            (
                one.pid
                for one in psutil.net_connections("tcp")
                if one.status == "LISTEN" and one.laddr and one.laddr.port == port
            ),
            None,
        )
        if owner is None:
            return NotMeasured(check="processes", reason=f"no process of this host listens on port {port}")
        root = psutil.Process(owner)
        tree = [root, *root.children(recursive=True)]
        return ProcessReading(processes=len(tree), resident_bytes=sum(one.memory_info().rss for one in tree))
    except psutil.Error as error:
        return NotMeasured(check="processes", reason=f"{type(error).__name__}: {error}")
