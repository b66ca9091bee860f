"""The hands of remediation: the launcher's verbs over its control socket.

Each method is one verb. Refusals and a launcher that is away come up as :class:`agent.errors.LauncherError`.
"""

from __future__ import annotations

from typing import Any

from agent.launch import LauncherClient
from agent.model import Change


class LauncherHands:
    """:class:`agent.remediate.Hands` over one launcher."""

    def __init__(self, client: LauncherClient) -> None:
        self._client = client

    async def set_overrides(self, change: Change, incident: str) -> None:
        await self._client.call(
            "set-overrides",
            flags=[list(pair) for pair in change.flags],
            env=dict(change.env),
            unset_flags=list(change.unset_flags),
            incident=incident,
        )

    async def clear_overrides(self) -> None:
        await self._client.call("clear-overrides")

    async def restart(self, reason: str, incident: str, *, verify_memory: bool = True) -> None:
        await self._client.call("restart", reason=reason, incident=incident, verify_memory=verify_memory)

    async def hold(self, exit_seq: int, seconds: float) -> None:
        await self._client.call("hold", exit_seq=exit_seq, seconds=seconds)

    async def end_orphans(self) -> dict[str, Any]:
        return dict(await self._client.call("end-orphans"))

    async def probe(self, kind: str, **args: object) -> dict[str, Any]:
        return dict(await self._client.call("probe", name=kind, **args))

    async def status(self) -> dict[str, Any]:
        return dict(await self._client.call("status"))
