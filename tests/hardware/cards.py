"""A reader of the cards in front of a driver stand-in, as a watcher has it for a server without a launcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.collect import GpuRounds, GpuSet, LocalGpu
from agent.model import Sample

SERVER = 4242
PATIENCE = 40.0


def process(proc: Path, pid: int = SERVER, *, environment: Mapping[str, str] | None = None) -> Path:
    """``/proc`` with one process of the server; ``environment`` None: it may not be read."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").write_bytes(b"vllm\0serve\0")
    if environment is not None:
        (folder / "environ").write_bytes("\0".join(f"{k}={v}" for k, v in environment.items()).encode())
    return proc


class Reader:
    """Rounds at moments that the test names."""

    def __init__(self, source: LocalGpu) -> None:
        self.source = source
        self.rounds = GpuRounds("s", source)
        self.now = 0.0
        self.pids = [SERVER]

    async def read(self, *, asked: bool = True, after: float = 5.0) -> GpuSet:
        self.now += after
        return await self.rounds.read(self.now, asked=asked, pids=self.pids)

    async def until(self, condition: Callable[[GpuSet], object]) -> GpuSet:
        """The first round that fulfils it; rounds of a busy machine may have no answer in time."""
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = await self.read()
            if condition(seen):
                return seen
            assert time.monotonic() < deadline, f"it did not happen in time; the last round: {seen}"
            await asyncio.sleep(0.05)

    async def answered(self) -> GpuSet:
        """A round of now with an answer."""
        return await self.until(lambda seen: seen.age_seconds is not None and seen.age_seconds < 1 and _told(seen))


def value(seen: GpuSet, name: str, gpu: int = 0, /, **labels: str) -> float | None:
    """One sample's value; None where there is none."""
    found = [one for one in seen.samples if _is(one, name, gpu, labels)]
    assert len(found) <= 1
    return found[0].value if found else None


def _is(one: Sample, name: str, gpu: int, labels: Mapping[str, str]) -> bool:
    wanted = {"server": "s", "gpu": str(gpu), **labels, "uuid": one.labels["uuid"]}
    return one.name == f"vllm_agent_{name}" and dict(one.labels) == wanted


def _told(seen: GpuSet) -> bool:
    return any(one.name.endswith("_temperature_celsius") for one in seen.samples)


def names(seen: GpuSet, gpu: int = 0) -> set[str]:
    return {one.name.removeprefix("vllm_agent_") for one in seen.samples if one.labels["gpu"] == str(gpu)}


def reasons(seen: GpuSet) -> str:
    return "\n".join(f"{one.check}: {one.reason}" for one in seen.not_measured)
