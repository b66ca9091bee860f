"""What /proc and the memory cgroup say: own subtree, listeners, kills by the kernel, shared memory.

In: nothing but the kernel's files (the root is an argument, so tests lay out their own). Out: plain values;
what cannot be read is None or left out, never zero. Never sends a signal.

EngineCore and workers rename themselves and stay in the API server's session, so the session, not the name,
tells what belongs to the server.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.launch.redaction import redact_argv

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One process that is not a zombie, as /proc/PID/stat lists it."""

    pid: int
    ppid: int
    session: int
    name: str
    state: str
    cpu_seconds: float
    rss_bytes: int


def processes(proc: Path = PROC) -> list[Process]:
    """Every process of this PID namespace; zombies count as gone."""
    with os.scandir(proc) as entries:
        # Plain paths: all processes are read every few seconds, and a Path of each costs as much as the reading.
        names = [(int(entry.name), f"{entry.path}/stat") for entry in entries if entry.name.isdigit()]
    found = (_read_stat(path, pid) for pid, path in names)
    return [process for process in found if process is not None and process.state not in "ZX"]


def _read_stat(path: str, pid: int) -> Process | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 4096).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
        head, _, rest = text.rpartition(")")
        field = rest.split(None, 22)
        ticks = (int(field[11]) + int(field[12])) / TICKS
        return Process(
            pid, int(field[1]), int(field[3]), head.partition("(")[2], field[0], ticks, int(field[21]) * PAGE
        )
    except (OSError, ValueError, IndexError):
        return None


def subtree(root: int, sessions: Iterable[int], launch_id: str) -> list[Process]:
    """The server's processes: all in ``sessions``, and those of ``root``'s descendants that carry the
    launch's mark.

    A process that somebody else left to an adopting PID 1 (``kubectl exec``) has neither and is not ours.
    """
    everyone = processes()
    own = set(sessions)
    parents = {process.pid: process.ppid for process in everyone}
    return [
        process
        for process in everyone
        if process.session in own or (_descends(process.pid, root, parents) and marked(process.pid, launch_id))
    ]


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    seen = 0
    while pid in parents and seen < 1000:
        pid, seen = parents[pid], seen + 1
        if pid == root:
            return True
    return False


def marked(pid: int, launch_id: str) -> bool:
    """Whether a process that left the session still carries this launch in its environment."""
    try:
        return f"AGENT_LAUNCH_ID={launch_id}".encode() in (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def command_line(pid: int, limit: int = 200) -> str:
    """The command line without secrets, cut to ``limit`` characters; empty where it cannot be read."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    words = raw.rstrip(b"\0").decode("utf-8", "replace").split("\0")
    return " ".join(redact_argv(words))[:limit]


def listens(port: int, pids: Iterable[int]) -> bool | None:
    """Whether one of ``pids`` holds a listening TCP socket on ``port``; None where /proc does not tell."""
    inodes: set[str] = set()
    readable = False
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                field = line.split()
                if field[3] == "0A" and int(field[1].rpartition(":")[2], 16) == port:
                    inodes.add(field[9])
            readable = True
    if not readable or not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    answers = [_holds(pid, wanted) for pid in pids]
    if True in answers:
        return True
    return None if None in answers else False


def _holds(pid: int, wanted: set[str]) -> bool | None:
    folder = PROC / str(pid) / "fd"
    try:
        links = list(folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return None
    for link in links:
        with contextlib.suppress(OSError):
            if str(link.readlink()) in wanted:
                return True
    return False


@dataclass(frozen=True)
class CgroupMemory:
    """The memory cgroup of a process; every number may be unknown."""

    version: int | None = None
    limit_bytes: int | None = None
    usage_bytes: int | None = None
    oom_kill: int | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "version": self.version, "limit_bytes": self.limit_bytes, "usage_bytes": self.usage_bytes,
            "oom_kill": self.oom_kill,
        }  # fmt: skip


def cgroup_memory(pid: int | str = "self", proc: Path = PROC, mount: Path = CGROUP) -> CgroupMemory:
    """Limit, usage and number of OOM kills, for cgroup v1 and v2 (kernel: Documentation/admin-
    guide/cgroup-v*).
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return CgroupMemory()
    paths = {}
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            paths[controller] = path
    if "memory" in paths:
        return _version1(_existing(mount / "memory", paths["memory"], "memory.limit_in_bytes"))
    if "" in paths:
        return _version2(_existing(mount, paths[""], "memory.current"))
    return CgroupMemory()


def _existing(mount: Path, path: str, probe: str) -> Path:
    """The group's folder; in a container the mount itself is the group and the path is not visible."""
    folder = mount / path.lstrip("/")
    return folder if (folder / probe).exists() else mount


def _version1(folder: Path) -> CgroupMemory:
    limit = _number(folder / "memory.limit_in_bytes")
    return CgroupMemory(
        1,
        None if limit is None or limit >= UNLIMITED else limit,
        _number(folder / "memory.usage_in_bytes"),
        _keyed(folder / "memory.oom_control", "oom_kill"),
    )


def _version2(folder: Path) -> CgroupMemory:
    return CgroupMemory(
        2,
        _number(folder / "memory.max"),
        _number(folder / "memory.current"),
        _keyed(folder / "memory.events", "oom_kill"),
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _keyed(path: Path, key: str) -> int | None:
    try:
        match = re.search(rf"^{key} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def shared_memory(path: str = "/dev/shm") -> dict[str, object]:
    """``{available, reason, size_bytes, used_bytes, free_bytes}`` of the shared memory that NCCL and
    vLLM use.
    """
    try:
        info = os.statvfs(path)
    except OSError as error:
        return {"available": False, "reason": f"{path}: {error.strerror}", "size_bytes": None,
                "used_bytes": None, "free_bytes": None}  # fmt: skip
    size, free = info.f_blocks * info.f_frsize, info.f_bfree * info.f_frsize
    return {
        "available": True,
        "reason": None,
        "size_bytes": size,
        "used_bytes": size - free,
        "free_bytes": free,
    }
