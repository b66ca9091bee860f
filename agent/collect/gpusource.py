"""Who is asked about the cards: the launcher, or for a server without one the driver, from here.

In: the server's processes. Out: the document of ``probe gpu`` (:mod:`agent.collect.gpudocument`). Without a launcher
the choice of cards is in the server's own environment (``/proc/PID/environ``); where that may not be read, all cards
are shown and the document says so. A server that is not seen on this host has no cards here.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.launch import Cards, LauncherClient, start_here

SELECTING = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
)  # fmt: skip
UNSEEN = "the server's processes are not seen on this host, so its cards are not known"
GUESSED = "the server's environment cannot be read: all cards are shown, also those that it may not use"
Choice = Mapping[str, str]


class LauncherGpu:
    """The launcher's side: it starts the driver's process with the server's own environment and Python."""

    def __init__(self, client: LauncherClient) -> None:
        self._client = client

    async def facts(self, *, costly: bool, pids: Sequence[int]) -> Mapping[str, object]:
        return await self._client.call("probe", name="gpu", costly=costly)

    def close(self) -> None:
        """The launcher ends the driver's process when nobody asks any more."""


class LocalGpu:
    """A server of this host that nothing wraps. ``proc`` and ``environment`` (the agent's own) are for tests."""

    def __init__(self, *, proc: Path = Path("/proc"), environment: Mapping[str, str] | None = None) -> None:
        self._proc = proc
        self._own = dict(os.environ if environment is None else environment)
        self._choice: Choice | None = None
        self._server: int | None = None
        self._python: str | None = None
        self._cards = Cards(start_here, self._pythons, self._environment)

    @property
    def driver_pid(self) -> int | None:
        """The driver's process, where one runs."""
        return self._cards.pid

    async def facts(self, *, costly: bool, pids: Sequence[int]) -> Mapping[str, object]:
        if not pids:
            trouble = {"kind": "no-server", "reason": UNSEEN}
            return {**self._cards.idle(), "trouble": trouble}
        if pids[0] != self._server:
            await self._belong(pids[0])
        answer = await self._cards.read(costly=costly, own=list(pids))
        if self._choice is None and answer["measured"]:
            answer["note"] = "; ".join(filter(None, [GUESSED, str(answer["note"] or "")]))
        return answer

    def close(self) -> None:
        self._cards.close()

    async def _belong(self, pid: int) -> None:
        """Another process is the server's first: another choice needs another process at the driver."""
        choice, self._python = await asyncio.to_thread(self._look, pid)
        if self._server is not None and choice != self._choice:
            self._cards.close()
        self._server, self._choice = pid, choice

    def _look(self, pid: int) -> tuple[Choice | None, str | None]:
        """Runs in a thread: files of a stuck process may block."""
        folder = self._proc / str(pid)
        choice, python = None, None
        try:
            entries = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
            pairs = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            choice = {name: pairs[name] for name in SELECTING if name in pairs}
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            python = words[0] if Path(words[0]).name.startswith("python") and Path(words[0]).is_absolute() else None
        except OSError:
            pass
        return choice, python

    def _pythons(self) -> Sequence[str]:
        """The agent's own first: a binding is among its dependencies."""
        return list(dict.fromkeys([sys.executable, *([self._python] if self._python else [])]))

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in self._own.items() if name not in SELECTING}
        return {**kept, **(self._choice or {})}
