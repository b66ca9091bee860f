"""Lays out the kernel's files as machines of each kind have them: cgroup v1, v2, hybrid, with namespaces and without.

The lines of ``cgroup`` and ``mountinfo`` have the shape of real ones; names of containers are made up.
"""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30
NO_LIMIT_V1 = 9223372036854771712
STAT = (
    "{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194304 116 0 0 0 "
    "{user} {system} 7 7 20 0 {threads} 0 {started} 3133440 {pages} 1"
)
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max open files            {soft:<20} 1048576              files     \n"
)
NET_DEV = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast"
    "|bytes    packets errs drop fifo colls carrier compressed\n"
)


def write(path: Path, text: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


class Machine:
    """A /proc, a /sys and a cgroup mount below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.sysfs = folder / "sys"
        self.mount = folder / "cgroup"
        for part in (self.proc / "self", self.sysfs / "class" / "net", self.mount):
            part.mkdir(parents=True)

    def mounted(self, version: int, *, root: str = "/") -> None:
        """What the own namespace shows of the memory cgroup; other controllers stand before it."""
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
        write(
            self.proc / "self" / "mountinfo",
            "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
            "32 31 0:29 / /elsewhere/cpu rw,relatime - cgroup cgroup rw,cpu\n"
            f"35 31 0:32 {root} {self.mount} rw,relatime shared:9 - {kind}",
        )

    def member(self, path: str, version: int, pid: int | str = "self") -> None:
        lines = f"0::{path}" if version == 2 else f"9:name=systemd:/x\n4:memory:{path}\n1:cpu,cpuacct:/y\n0::/unified"
        write(self.proc / str(pid) / "cgroup", lines)

    def group2(self, path: str, **files: object) -> None:
        """``current=``, ``max=``, ``inactive=``, ``oom_kill=``: the files that are named exist, with others beside."""
        folder = self.mount / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for key, name in {"max": "memory.max", "current": "memory.current"}.items():
            if key in files:
                write(folder / name, files[key])
        if "inactive" in files:
            write(folder / "memory.stat", f"anon 100\nfile 50\ninactive_file {files['inactive']}\nactive_file 1")
        if "oom_kill" in files:
            write(
                folder / "memory.events", f"low 0\nhigh 0\nmax 9\noom 8\noom_kill {files['oom_kill']}\noom_group_kill 7"
            )

    def group1(
        self, path: str, *, limit: int, usage: int, inactive: int = 0, oom_kill: int = 0, whole_limit: int | None = None
    ) -> None:
        folder = self.mount / path.lstrip("/")
        write(folder / "memory.limit_in_bytes", limit)
        write(folder / "memory.usage_in_bytes", usage)
        above = limit if whole_limit is None else whole_limit
        write(
            folder / "memory.stat",
            f"cache 5\ninactive_file 3\nhierarchical_memory_limit {above}\ntotal_inactive_file {inactive}",
        )
        write(folder / "memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {oom_kill}")

    def process(
        self, pid: int, *, name: str = "VLLM::EngineCore", state: str = "S", user: int = 100, system: int = 20,
        threads: int = 3, started: int = 5, pages: int = 10, fds: int = 0, soft: object = 1024,
    ) -> None:  # fmt: skip
        folder = self.proc / str(pid)
        write(folder / "stat", STAT.format(**locals()))
        write(folder / "limits", LIMITS.format(soft=soft))
        (folder / "fd").mkdir(exist_ok=True)
        for number in range(fds):
            (folder / "fd" / str(number)).touch()

    def host(self, total_kb: int = 1000, available_kb: int = 400) -> None:
        write(
            self.proc / "meminfo",
            f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\nHugePages_Total: 0",
        )
        write(self.proc / "stat", "cpu  100 200 300 400 500 600 700 800 900 1000\ncpu0 1 2 3 4\nintr 5")

    def counted(self, pid: int | str = "self", **interfaces: tuple[int, int]) -> None:
        lines = "".join(
            f"{name:>6}: {received} 8 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0\n"
            for name, (received, sent) in interfaces.items()
        )
        write(self.proc / str(pid) / "net" / "dev", NET_DEV + lines.rstrip("\n"))

    def link(self, name: str, *, state: str = "up", speed: object = None, device: bool = False, kind: int = 1) -> Path:
        folder = self.sysfs / "class" / "net" / name
        write(folder / "operstate", state)
        write(folder / "type", kind)
        if speed is not None:
            write(folder / "speed", speed)
        if device:
            (folder / "device").mkdir()
        return folder
