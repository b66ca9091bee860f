"""``probe host``: what the host, the container and the server's processes have left, as numbers with names.

In: which processes are the server's, and the kernel's files. Out: ``{"measures": [{name, label, value}], "unknown":
[{check, reason}]}``; the names are those of the agent's metrics without their prefix, ``label`` fills their label
``name``. What cannot be read is in ``unknown`` with its reason and never zero.

It runs where the server runs, since only there its cgroup, mounts and interfaces are visible, and it blocks nobody:
whatever touches a file runs in threads with a limit (:class:`agent.launch.space.Bounded`), a file system and the
quick rest each in one of its own. Sizes and link speeds change slowly and are read every 30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.launch.cgroup import PROC, memory_group
from agent.launch.network import Interface, interfaces, traffic
from agent.launch.space import Bounded, Space, measure
from agent.launch.usage import Usage, cpu_times, max_fds, meminfo, open_fds, usage

QUICK_LIMIT_SECONDS = 2.0
SPACE_LIMIT_SECONDS = 2.0
SLOW_SECONDS = 30.0
SHM = "shm"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Whom it is about. ``spaces`` are paths by use (:func:`agent.launch.space.places`).

    ``shares`` true: the reader is in the server's namespaces (the launcher is); else it looks through /proc/PID.
    """

    pids: Sequence[int] = ()
    spaces: Mapping[str, str] = field(default_factory=dict)
    shares: bool = True


class Facts:
    """Collects measures and reasons."""

    def __init__(self) -> None:
        self.measures: list[dict[str, object]] = []
        self.unknown: list[dict[str, object]] = []

    def add(self, name: str, value: float | None, label: str | None = None, *, reason: str = "not told") -> None:
        """``value``, or where it is None why."""
        if value is None:
            self.unknown.append({"check": f"{name} {label}" if label else name, "reason": reason})
        else:
            self.measures.append({"name": name, "label": label, "value": value})

    def to_json(self) -> dict[str, object]:
        return {"measures": self.measures, "unknown": self.unknown}


class HostProbe:
    """Remembers what a counter needs: processor time of processes that have ended stays counted."""

    def __init__(self, monotonic: Callable[[], float], *, proc: Path = PROC, sysfs: Path = Path("/sys")) -> None:
        self._monotonic = monotonic
        self._proc = proc
        self._sysfs = sysfs
        self._subject: Callable[[], Subject] = Subject
        self._quick = Bounded(self._look, monotonic)
        self._spaces: dict[str, tuple[str, Bounded[Space]]] = {}
        self._sizes: dict[str, Space | str] = {}
        self._sized_at = self._linked_at = -1e9
        self._links: tuple[Interface, ...] = ()
        self._spent: dict[tuple[int, int], float] = {}
        self._spent_total = 0.0

    async def read(self, subject: Callable[[], Subject]) -> dict[str, object]:
        """One round; ``subject`` is asked in a thread, for it may read /proc. Never raises, never blocks the loop."""
        self._subject = subject
        try:
            seen, facts = await self._quick.run(QUICK_LIMIT_SECONDS)
        except Exception as error:
            facts = Facts()
            facts.add("host", None, reason=f"/proc could not be read: {error}")
            return facts.to_json()
        await self._measure(seen)
        self._add_spaces(facts)
        return facts.to_json()

    # -- /proc, /sys and the cgroup ---------------------------------------------------------------------------

    def _look(self) -> tuple[Subject, Facts]:
        subject, facts = self._subject(), Facts()
        first = subject.pids[0] if subject.pids and not subject.shares else "self"
        self._host(facts)
        self._processes(facts, subject.pids)
        if subject.pids or subject.shares:
            self._cgroup(facts, subject.pids[0] if subject.pids else "self")
            self._network(facts, self._proc / str(first), subject)
        else:
            for name in ("cgroup_memory_bytes", "network_receive_bytes_total", "shm_free_bytes", "disk_free_bytes"):
                facts.add(name, None, reason="no process of the server was found")
        return subject, facts

    def _host(self, facts: Facts) -> None:
        memory = meminfo(self._proc / "meminfo")
        for name, key in (("host_memory_total_bytes", "MemTotal"), ("host_memory_available_bytes", "MemAvailable")):
            facts.add(name, memory.get(key), reason=f"{self._proc}/meminfo does not tell {key}")
        times = cpu_times(self._proc / "stat")
        if not times:
            facts.add("host_cpu_seconds_total", None, reason=f"{self._proc}/stat does not tell it")
        for mode, seconds in times.items():
            facts.add("host_cpu_seconds_total", seconds, mode)

    def _processes(self, facts: Facts, pids: Sequence[int]) -> None:
        seen = {pid: spent for pid in pids if (spent := usage(self._proc / str(pid) / "stat")) is not None}
        reason = "no process of the server runs" if not pids else "its processes ended, or cannot be read"
        some = seen.values()
        facts.add(
            "server_resident_memory_bytes", sum(it.resident_bytes for it in some) if seen else None, reason=reason
        )
        facts.add("server_threads", sum(it.threads for it in some) if seen else None, reason=reason)
        facts.add("server_cpu_seconds_total", self._cpu(seen) if seen else None, reason=reason)
        self._descriptors(facts, seen, reason)

    def _cpu(self, seen: Mapping[int, Usage]) -> float:
        """Only ever more, also when a worker ends; what a process used before it was first seen counts too."""
        now = {(pid, it.started_ticks): it.cpu_seconds for pid, it in seen.items()}
        self._spent_total += sum(max(0.0, cpu - self._spent.get(key, 0.0)) for key, cpu in now.items())
        self._spent = now
        return round(self._spent_total, 2)

    def _descriptors(self, facts: Facts, pids: Iterable[int], reason: str) -> None:
        """Of the process that is nearest to its limit."""
        worst: tuple[float, int, int | None] | None = None
        for pid in pids:
            try:
                count = open_fds(self._proc / str(pid) / "fd")
                limit = max_fds(self._proc / str(pid) / "limits")
            except FileNotFoundError:
                continue  # ended meanwhile
            except OSError as error:
                reason = f"{error.filename}: {error.strerror}"
                continue
            share = (count / limit if limit else 0.0, count, limit)
            worst = share if worst is None or share[:2] > worst[:2] else worst
        facts.add("server_open_fds", None if worst is None else worst[1], reason=reason)
        facts.add("server_max_fds", None if worst is None else worst[2], reason=reason if worst is None else "no limit")

    def _cgroup(self, facts: Facts, pid: int | str) -> None:
        group = memory_group(pid, self._proc)
        why = group.unknown
        facts.add("cgroup_memory_bytes", group.used_bytes, reason=why.get("used_bytes", ""))
        facts.add("cgroup_memory_limit_bytes", group.limit_bytes, reason=why.get("limit_bytes", ""))
        facts.add("cgroup_oom_kills_total", group.oom_kills, reason=why.get("oom_kills", ""))

    def _network(self, facts: Facts, process: Path, subject: Subject) -> None:
        try:
            counted = traffic(process / "net" / "dev")
        except OSError as error:
            facts.add("network_receive_bytes_total", None, reason=f"{error.filename}: {error.strerror}")
            return
        sysfs = self._sysfs if subject.shares else process / "root" / "sys"
        now = self._monotonic()
        if now - self._linked_at >= SLOW_SECONDS or not {it.name for it in self._links} <= set(counted):
            self._linked_at, self._links = now, interfaces(counted, sysfs / "class" / "net")
        if not self._links:
            facts.add("network_receive_bytes_total", None, reason="no interface but the loopback is up")
        for link in self._links:
            if link.name in counted:
                facts.add("network_receive_bytes_total", counted[link.name].received, link.name)
                facts.add("network_transmit_bytes_total", counted[link.name].sent, link.name)
                facts.add("network_speed_bytes_per_second", link.speed, link.name, reason=link.reason or "")

    # -- file systems -------------------------------------------------------------------------------------------

    async def _measure(self, subject: Subject) -> None:
        """Sizes anew every 30 s, or when the paths are others; each path alone, so one that hangs hides no other."""
        root = Path("/") if subject.shares or not subject.pids else self._proc / str(subject.pids[0]) / "root"
        paths = {SHM: "/dev/shm", **subject.spaces} if subject.shares or subject.pids else {}
        now = self._monotonic()
        if now - self._sized_at < SLOW_SECONDS and paths.keys() == self._sizes.keys():
            return
        self._sized_at = now
        spaces = {use: self._kept(self._spaces.get(use), path, root) for use, path in paths.items()}
        self._spaces = spaces  # before the wait: another round may begin meanwhile
        answers = await asyncio.gather(*(_answer(path, work) for path, work in spaces.values()))
        self._sizes = dict(zip(spaces, answers, strict=True))

    def _kept(self, known: tuple[str, Bounded[Space]] | None, path: str, root: Path) -> tuple[str, Bounded[Space]]:
        shown = str(root / path.lstrip("/"))
        if known is not None and known[0] == shown:
            return known
        return shown, Bounded(lambda: measure(path, root), self._monotonic)

    def _add_spaces(self, facts: Facts) -> None:
        """A file system that several uses share is told once, under the first."""
        told: set[int] = set()
        for use, size in self._sizes.items():
            kind, label = (SHM, None) if use == SHM else ("disk", use)
            if isinstance(size, str):
                facts.add(f"{kind}_free_bytes", None, label, reason=size)
            elif size.total_bytes == 0:
                facts.add(f"{kind}_free_bytes", None, label, reason="its file system has no size")
            elif use == SHM or size.device not in told:
                told.add(size.device)
                facts.add(f"{kind}_total_bytes", size.total_bytes, label)
                facts.add(f"{kind}_free_bytes", size.free_bytes, label)


async def _answer(path: str, work: Bounded[Space]) -> Space | str:
    try:
        return await work.run(SPACE_LIMIT_SECONDS)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    except Exception as error:
        return f"{path}: {error}"
