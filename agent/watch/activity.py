"""Who of an engine computes: its processes' states and CPU time over the last minutes, and its GPU's work.

In: readings of the server's processes (the launcher's probe or this host's /proc), each with what is known of the GPU
at that moment. Out: for one engine whether a process of it has been stopped, and whether anybody computed, over a
window that was really watched. What was not read is never taken for silence.

Seen on vLLM 0.32 for CPU: engine and worker that wait for each other use 0.00 to 0.03 CPU seconds a second; a worker
spins for one second after its last step; a computing worker uses one or more. On a GPU the engine waits for a long
step without using the CPU (``torch.cuda.Event(blocking=True)``, vllm/v1/worker/gpu_model_runner.py), so an idle CPU
proves nothing there unless the GPU is known to be idle too.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from agent.collect import ProcessState

KEEP_SECONDS = 180.0
FRESH_SECONDS = 5.0
# Of one core, over the window; below this nobody computes.
FLAT_SHARE = 0.05
FLAT_SECONDS = 0.1
# Of one core; two scrapes a second cost an API server 0.02.
BUSY_SHARE = 0.3
# Gaps between readings larger than this leave the window unwatched.
HOLE_SECONDS = 15.0
API = "api"
EVERY = "*"

# Titles are set by vLLM (vllm/v1/engine/core.py, vllm/v1/executor/multiproc_executor.py); a name that was cut to 15
# characters is understood too.
_ENGINE = re.compile(r"::EngineCor(?:e(?:_DP(\d+))?)?")
_WORKER = re.compile(r"::Worker(?:_DP(\d+))?")
_SERVER = re.compile(r"::(?:APIServer|DPCoordinator)")


class GpuWork(str, enum.Enum):
    """What the server's own GPUs did at the moment of a reading; NONE: the server uses no GPU at all."""

    NONE = "none"
    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"


class Computing(str, enum.Enum):
    """Whether anybody of an engine computed over a window. NOBODY needs the whole window watched."""

    SOMEBODY = "somebody"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


class Halted(msgspec.Struct, frozen=True, kw_only=True):
    """A process in state T, t or D in every reading of the last ``seconds``."""

    name: str
    pid: int
    letter: str
    seconds: float

    def __str__(self) -> str:
        word = "blocked in the kernel" if self.letter == "D" else "stopped"
        return f"{self.name} (pid {self.pid}) is {word} (state {self.letter}) for {self.seconds:.0f} s"


class _Reading(msgspec.Struct, frozen=True):
    at: float
    members: Mapping[int, ProcessState]
    owners: Mapping[int, str]
    gpu: GpuWork


def owners(members: Iterable[ProcessState]) -> dict[int, str]:
    """pid -> the engine label that it works for, ``api`` for the API side, ``*`` for whatever serves all.

    A server whose processes carry no titles (setproctitle missing) has no engine process here: nothing is known.
    """
    table = {one.pid: one for one in members}
    engines = {pid: match[1] or "0" for pid, one in table.items() if (match := _ENGINE.search(one.title))}
    if not engines:
        return {}
    parents = {table[pid].ppid for pid in engines}
    return {pid: _owner(one, table, engines, parents) for pid, one in table.items()}


def _owner(one: ProcessState, table: Mapping[int, ProcessState], engines: Mapping[int, str], parents: set[int]) -> str:
    if one.pid in engines:
        return engines[one.pid]
    worker = _WORKER.search(one.title)
    if worker and worker[1]:
        return worker[1]
    pid = one.ppid
    for _ in range(20):
        if pid in engines:
            return engines[pid]
        if pid not in table:
            break
        pid = table[pid].ppid
    return API if one.pid in parents or _SERVER.search(one.title) else EVERY


def short_name(one: ProcessState) -> str:
    """``EngineCore_DP0``, ``Worker_TP1``, or the first word of the command."""
    title = one.title.strip()
    return title.rpartition("::")[2].split(" ")[0] if "::" in title else title.split(" ")[0].rpartition("/")[2]


class Activity:
    """The readings of one server, newest last."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def saw(self, members: Iterable[ProcessState], gpu: GpuWork, at: float) -> None:
        """One reading, taken at monotonic ``at``."""
        table = {one.pid: one for one in members}
        self._readings.append(_Reading(at, table, owners(table.values()), gpu))
        while self._readings[0].at < at - KEEP_SECONDS:
            self._readings.popleft()

    def clear(self) -> None:
        """A new start: other processes."""
        self._readings.clear()

    @property
    def at(self) -> float | None:
        """When the newest reading was taken."""
        return self._readings[-1].at if self._readings else None

    def halted(self, engine: str, now: float, letters: str = "Tt") -> Halted | None:
        """The process of ``engine`` that was longest in one of ``letters``, without a break up to now."""
        newest = self._newest(now)
        if newest is None:
            return None
        found = [
            Halted(name=short_name(one), pid=pid, letter=one.state, seconds=newest.at - self._since(pid, letters))
            for pid, one in newest.members.items()
            if one.state in letters and newest.owners.get(pid) == engine
        ]
        return max(found, key=lambda one: one.seconds, default=None)

    def _newest(self, now: float) -> _Reading | None:
        newest = self._readings[-1] if self._readings else None
        return newest if newest is not None and now - newest.at <= FRESH_SECONDS else None

    def _since(self, pid: int, letters: str) -> float:
        since = self._readings[-1].at
        for reading in reversed(self._readings):
            one = reading.members.get(pid)
            if one is None or one.state not in letters or since - reading.at > HOLE_SECONDS:
                break
            since = reading.at
        return since

    def computing(self, engine: str, now: float, window: float) -> Computing:
        """Whether a process of ``engine`` (or one that serves all, such as a compiler) or its GPU worked within the
        last ``window`` seconds.
        """
        newest = self._newest(now)
        first = self._first(window)
        if newest is None or first is None or not any(owner == engine for owner in newest.owners.values()):
            return Computing.UNKNOWN
        part = [one for one in self._readings if one.at >= first.at]
        if self._used_cpu(engine, first, newest) or any(one.gpu is GpuWork.BUSY for one in part):
            return Computing.SOMEBODY
        if any(after.at - before.at > HOLE_SECONDS for before, after in itertools.pairwise(part)):
            return Computing.UNKNOWN
        known = all(one.gpu in (GpuWork.NONE, GpuWork.IDLE) for one in part)
        return Computing.NOBODY if known else Computing.UNKNOWN

    def cpu_flat(self, engine: str, now: float, window: float) -> bool:
        """Whether the engine's processes were watched for ``window`` seconds and used no CPU; says nothing of a GPU."""
        newest, first = self._newest(now), self._first(window)
        if newest is None or first is None or not any(owner == engine for owner in newest.owners.values()):
            return False
        return not self._used_cpu(engine, first, newest)

    def api_busy(self, now: float, window: float) -> bool:
        """Whether a process of the API side was busy: a request may wait there, before any engine knows of it."""
        newest, first = self._newest(now), self._first(window)
        if newest is None or first is None:
            return False
        allowed = BUSY_SHARE * (newest.at - first.at)
        return any(
            one.cpu_seconds - first.members[pid].cpu_seconds > allowed
            for pid, one in newest.members.items()
            if newest.owners.get(pid) == API and pid in first.members
        )

    def gpu(self, window: float) -> GpuWork:
        """BUSY if a reading of the window says so, else the newest word."""
        if not self._readings:
            return GpuWork.UNKNOWN
        begin = self._readings[-1].at - window
        if any(one.gpu is GpuWork.BUSY for one in self._readings if one.at >= begin):
            return GpuWork.BUSY
        return self._readings[-1].gpu

    def _first(self, window: float) -> _Reading | None:
        """The youngest reading that is at least ``window`` older than the newest."""
        for reading in reversed(self._readings):
            if reading.at <= self._readings[-1].at - window:
                return reading
        return None

    @staticmethod
    def _used_cpu(engine: str, first: _Reading, last: _Reading) -> bool:
        """A process that came or went counts as work: somebody started or ended it."""
        mine = {pid for pid, owner in last.owners.items() if owner in (engine, EVERY)}
        theirs = {pid for pid, owner in first.owners.items() if owner in (engine, EVERY)}
        if mine != theirs:
            return True
        allowed = FLAT_SHARE * (last.at - first.at) + FLAT_SECONDS
        return any(last.members[pid].cpu_seconds - first.members[pid].cpu_seconds > allowed for pid in mine)
