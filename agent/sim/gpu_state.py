"""The state of the stand-in's card: a small CSV file that the engine writes and the `nvidia-smi` stand-in
reads.

Lines: ``gpu,index,uuid,name,total_mib,compute_cap`` and ``app,uuid,pid,used_mib,name,real|guest``. A real
line is a process of the stand-in: it counts only while that process lives, so a kill -9 gives the memory back
as a driver would. A guest is the neighbour of the oom-neighbour fault: it stays until it is taken out, across
restarts of the server, because another tenant's memory does not go away when vLLM dies. Writers hold a lock
beside the file and replace it in one step. Without a file everything here answers "nothing known".
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

#: A process id above the kernel's highest (pid_max is at most 4,194,304): never that of a real process.
NEIGHBOUR_PID = 4_194_399
MIB = 1 << 20


@dataclass(frozen=True)
class App:
    """A process that holds memory of the card; ``used`` in MiB."""

    uuid: str
    pid: int
    used: int
    name: str
    guest: bool = False

    @property
    def alive(self) -> bool:
        """Whether its memory still counts: a guest's does, a process's while it runs and is no zombie."""
        if self.guest:
            return True
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False


@dataclass(frozen=True)
class Gpu:
    """A card; ``total`` in MiB, ``capability`` as in 9.0."""

    index: int
    uuid: str
    name: str
    total: int
    capability: str


@dataclass(frozen=True)
class State:
    """What the file says; dead processes are left out when it is read."""

    gpus: tuple[Gpu, ...] = ()
    apps: tuple[App, ...] = ()

    def used(self, uuid: str, *, besides: int = 0) -> int:
        """MiB in use on a card, without what the process ``besides`` holds."""
        return sum(app.used for app in self.apps if app.uuid == uuid and app.pid != besides)


def read(path: str) -> State:
    """The file's state; an empty one where there is no file or a line is not understood."""
    gpus: list[Gpu] = []
    apps: list[App] = []
    try:
        lines = Path(path).read_text().splitlines() if path else []
    except OSError:
        return State()
    for line in lines:
        cells = line.split(",")
        if cells[0] == "gpu" and len(cells) == 6:
            gpus.append(Gpu(int(cells[1]), cells[2], cells[3], int(cells[4]), cells[5]))
        elif cells[0] == "app" and len(cells) == 6:
            apps.append(App(cells[1], int(cells[2]), int(cells[3]), cells[4], cells[5] == "guest"))
    return State(tuple(gpus), tuple(app for app in apps if app.alive))


def change(path: str, edit: Callable[[State], State]) -> State:
    """Read, edit and replace the file under its lock; without a path only the edit of an empty state."""
    if not path:
        return edit(State())
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = edit(read(path))
        rows = [f"gpu,{g.index},{g.uuid},{g.name},{g.total},{g.capability}" for g in state.gpus]
        rows += [
            f"app,{a.uuid},{a.pid},{a.used},{a.name},{'guest' if a.guest else 'real'}" for a in state.apps if a.alive
        ]
        temporary = Path(f"{path}.{os.getpid()}.tmp")
        temporary.write_text("\n".join(rows) + "\n")
        temporary.replace(path)
    return state


def with_app(state: State, app: App) -> State:
    """The state with this process's line put in, or replaced; a line of 0 MiB is taken out."""
    others = tuple(a for a in state.apps if a.pid != app.pid)
    return replace(state, apps=(*others, app) if app.used else others)


def with_gpu(state: State, gpu: Gpu) -> State:
    """The state with this card, kept if it is there already."""
    if any(g.uuid == gpu.uuid for g in state.gpus):
        return state
    return replace(state, gpus=(*state.gpus, gpu))
