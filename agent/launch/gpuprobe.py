"""``probe gpu``: the cards by NVML or amdsmi where the driver's process can, else by nvidia-smi.

In: whether the costly fields are wanted. Out: ``{available, reason, gpus}`` as nvidia-smi fills it too, with ``backend,
cards, xids, age_seconds, trouble, …`` of :mod:`agent.launch.cards` beside it. ``gpus`` of the driver's process are the
server's own in CUDA's order; nvidia-smi lists all that it sees.

A request that says ``costly`` (true or false) is one of a watcher's rounds, which come every few seconds: it never
starts nvidia-smi, which takes up to a second of processor time. Each Xid is an event of the launcher too: ``{kind:
xid, gpu, uuid, xid, unix}``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from agent.launch.cards import Cards, Document
from agent.launch.children import Reaper, spawn
from agent.launch.cleanup import Cleanup
from agent.launch.events import Events
from agent.launch.nvmlfields import pids_match
from agent.launch.surroundings import Surroundings


class GpuProber:
    """Of one launcher."""

    def __init__(
        self,
        reaper: Reaper,
        surroundings: Surroundings,
        cleanup: Cleanup,
        events: Events,
        env: Callable[[], Mapping[str, str]],
    ) -> None:
        self._reaper = reaper
        self._surroundings = surroundings
        self._cleanup = cleanup
        self._events = events
        self._cards = Cards(self._start, self._pythons, env, self._xid)

    async def probe(self, costly: bool | None) -> Document:
        """None: somebody wants evidence once, as full as it can be had. Never raises."""
        own = await asyncio.to_thread(self._pids) if pids_match() else None
        answer = await self._cards.read(costly=costly is not False, own=own)
        if answer["measured"] or costly is not None:
            return {**_summary(answer), **answer}
        return {**answer, **(await self._surroundings.probe_gpus()).to_json()}

    def close(self) -> None:
        """End the driver's process."""
        self._cards.close()

    def _xid(self, xid: Mapping[str, object]) -> None:
        self._events.add("xid", gpu=xid["gpu"], uuid=xid["uuid"], xid=xid["xid"], unix=xid["at"])

    def _pids(self) -> list[int]:
        return [process.pid for process in self._cleanup.members()]

    def _pythons(self) -> Sequence[str]:
        """The server's Python first: vLLM brings a binding. The launcher's own needs none."""
        server = self._surroundings.stack.python
        return list(dict.fromkeys([*([server] if server else []), sys.executable]))

    def _start(self, argv: Sequence[str], env: Mapping[str, str], reader: int, writer: int) -> subprocess.Popen[bytes]:
        process = spawn(argv, env, stdin=reader, stdout=writer, stderr=subprocess.DEVNULL)
        self._reaper.expect(process.pid, process)
        return process


def _summary(answer: Mapping[str, object]) -> Document:
    cards, trouble = answer.get("cards"), answer.get("trouble")
    readings = [one.get("reading") for one in cards if isinstance(one, dict)] if isinstance(cards, list) else []
    reason = trouble.get("reason") if isinstance(trouble, dict) else answer.get("note")
    return {
        "available": bool(answer["measured"]),
        "reason": reason,
        "gpus": [reading for reading in readings if reading is not None],
    }
