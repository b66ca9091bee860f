"""What nvidia-smi says, within two seconds.

In: its CSV. Out: cards with sizes in bytes, and the processes that hold them. ``[N/A]`` is None. Never uses
NVML (standard library only) and never waits for a driver that hangs.

The pids are the host's: evidence, never an argument to a signal.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from agent.launch.children import Tools

LIMIT_SECONDS = 2.0
MIB = 1 << 20
GPU_FIELDS = "index,uuid,name,memory.total,memory.used,memory.free,compute_cap"
APP_FIELDS = "gpu_uuid,pid,used_memory,process_name"
FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True)
class GpuProcess:
    """Who holds memory on a card. The pid is the host's."""

    pid: int
    used_bytes: int | None
    name: str


@dataclass(frozen=True)
class Gpu:
    """One card. Sizes in bytes; None is "the driver does not say"."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    compute_capability: str | None
    processes: tuple[GpuProcess, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "index": self.index, "uuid": self.uuid, "name": self.name, "total_bytes": self.total_bytes,
            "used_bytes": self.used_bytes, "free_bytes": self.free_bytes,
            "compute_capability": self.compute_capability,
            "processes": [{"pid": p.pid, "used_bytes": p.used_bytes, "name": p.name} for p in self.processes],
        }  # fmt: skip


@dataclass(frozen=True)
class GpuProbe:
    """``installed`` false: there is no nvidia-smi, so there are no GPUs to wait for. ``reason`` where
    not available.
    """

    available: bool
    installed: bool
    reason: str | None
    gpus: tuple[Gpu, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "available": self.available,
            "reason": self.reason,
            "gpus": [gpu.to_json() for gpu in self.gpus],
        }


async def probe_gpus(tools: Tools, env: Mapping[str, str], *, with_processes: bool = True) -> GpuProbe:
    """Ask nvidia-smi, found on the PATH of ``env``."""
    program = shutil.which("nvidia-smi", path=env.get("PATH"))
    if program is None:
        return GpuProbe(False, False, "nvidia-smi is not on the PATH")
    cards = await tools.run([program, f"--query-gpu={GPU_FIELDS}", FORMAT], timeout=LIMIT_SECONDS, env=env)
    if cards.code != 0:
        return GpuProbe(False, True, cards.error or _first_line(cards.stdout + cards.stderr) or f"exit {cards.code}")
    apps = ""
    if with_processes:
        answer = await tools.run(
            [program, f"--query-compute-apps={APP_FIELDS}", FORMAT], timeout=LIMIT_SECONDS, env=env
        )
        apps = answer.stdout if answer.code == 0 else ""
    return GpuProbe(True, True, None, parse(cards.stdout, apps))


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def parse(cards: str, apps: str) -> tuple[Gpu, ...]:
    """Both answers joined by UUID; lines that do not fit are left out."""
    holders: dict[str, list[GpuProcess]] = {}
    for row in _rows(apps, 4):
        pid = _integer(row[1])
        if pid is not None:
            holders.setdefault(row[0], []).append(GpuProcess(pid, _mib(row[2]), ",".join(row[3:])))
    found = []
    for row in _rows(cards, 7):
        index = _integer(row[0])
        if index is not None:
            capability = row[6] if row[6].replace(".", "").isdigit() else None
            total, used, free = (_mib(cell) for cell in row[3:6])
            held = tuple(holders.get(row[1], []))
            found.append(Gpu(index, row[1], row[2], total, used, free, capability, held))
    return tuple(found)


def _rows(text: str, width: int) -> list[list[str]]:
    rows = ([cell.strip() for cell in row] for row in csv.reader(text.splitlines()))
    return [row for row in rows if len(row) >= width]


def _integer(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _mib(text: str) -> int | None:
    try:
        return int(float(text.removesuffix("MiB").strip()) * MIB)
    except ValueError:
        return None


def visible(gpus: tuple[Gpu, ...], env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves (indices, or UUIDs and their beginnings); all where it is
    not set.
    """
    setting = env.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return gpus
    chosen = []
    for word in (part.strip() for part in setting.split(",")):
        match = [
            gpu for gpu in gpus if (str(gpu.index) == word if word.isdigit() else word and gpu.uuid.startswith(word))
        ]
        if not match:
            break  # CUDA stops at the first entry that it does not know
        chosen += match[:1]
    return tuple(chosen)
