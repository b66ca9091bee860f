"""What the server stands on: its software and its cards, asked once and kept.

In: the command and its environment. Out: versions, GPU UUIDs, the key of the overrides. Unknown is None; an
answer that failed is asked again the next time, one that is known is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.launch.children import Tools
from agent.launch.command import command_sha256
from agent.launch.gpu import GpuProbe, probe_gpus, visible
from agent.launch.overrides import Key
from agent.launch.versions import Stack, read_stack


class Surroundings:
    """Cached facts around one command."""

    def __init__(self, tools: Tools, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._tools = tools
        self._argv = argv
        self._env = env
        self.stack = Stack(reason="not read yet")
        self.gpus: tuple[str, ...] | None = None
        self.command_sha256 = command_sha256(argv)

    async def refresh(self) -> None:
        """Read versions anew (an upgrade may have happened), and the cards if they are not known yet."""
        self.stack = await read_stack(self._tools, self._argv, self._env)
        if self.gpus is None:
            await self.probe_gpus(with_processes=False)

    async def probe_gpus(self, *, with_processes: bool = True) -> GpuProbe:
        """Ask the driver now; the UUIDs are kept."""
        probe = await probe_gpus(self._tools, self._env, with_processes=with_processes)
        if not probe.installed:
            self.gpus = ()
        elif probe.available:
            self.gpus = tuple(gpu.uuid for gpu in visible(probe.gpus, self._env))
        return probe

    async def used_bytes(self) -> int | None:
        """Memory in use on the visible cards together; None where nobody says."""
        probe = await self.probe_gpus(with_processes=False)
        used = [gpu.used_bytes for gpu in visible(probe.gpus, self._env)]
        known = [count for count in used if count is not None]
        return sum(known) if known and len(known) == len(used) else None

    def key(self) -> Key:
        """Whom overrides belong to, as far as it is known now."""
        return Key(self.command_sha256, self.stack.vllm, self.gpus)
