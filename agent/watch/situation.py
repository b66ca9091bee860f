"""What planning may know, read at the moment it is asked: the launcher's status and probes, the log's settings.

In: a cause (it decides what is probed). Out: :class:`agent.remediate.Situation`. A probe that fails leaves its
field unmeasured; planning then says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agent.collect import gpu_readings
from agent.errors import LauncherError
from agent.model import AssemblerFacts, Cause, Change, GpuReading, Mode, NotMeasured
from agent.remediate import AssemblerCandidate, Hands, Situation, from_wire
from agent.watch.activity import short_name
from agent.watch.evidence import ServerEvidence
from agent.watch.hangs import debugged


class SituationReader:
    """Reads the situation of one server; ``hands`` None means attached only."""

    def __init__(self, evidence: ServerEvidence, hands: Hands | None, modes: Callable[[], Mapping[str, Mode]]) -> None:
        self._evidence = evidence
        self._hands = hands
        self._modes = modes

    async def __call__(self, cause: Cause) -> Situation:
        """One reading. Never raises."""
        status = await self._status()
        ptxas = await self._assemblers(cause)
        record = self._evidence.exit
        gpus = await self._gpus()
        return Situation(
            settings=self._evidence.log.session.settings(self._evidence.context()),
            overrides=from_wire(status.get("overrides")) or Change(),
            argv=tuple(str(word) for word in status.get("operator_argv") or ()),
            env=await self._environment(),
            gpus=gpus,
            state=self._evidence.state(),
            vllm_version=status.get("vllm_version"),
            triton_version=ptxas.get("triton_version") or status.get("triton_version"),
            can_append_flags=bool(status.get("can_append_flags", False)),
            has_hands=self._hands is not None,
            start_failed=self._evidence.ended() and record is not None and record.ready_at is None,
            modes=self._modes(),
            assemblers=_candidates(ptxas),
            assembler_variable=ptxas.get("variable"),
            debugged=self._debugger(),
        )

    def _debugger(self) -> str | None:
        held = None if self._evidence.ended() else debugged(self._evidence)
        return f"a debugger holds {short_name(held)} (pid {held.pid}, state t)" if held is not None else None

    async def _status(self) -> Mapping[str, Any]:
        if self._hands is None:
            return {}
        try:
            return await self._hands.status()
        except LauncherError:
            return self._evidence.status

    async def _gpus(self) -> tuple[GpuReading, ...] | None:
        """None = not measured, () = there is no card."""
        result = await self._probe("gpu")
        readings = gpu_readings(result)
        if not isinstance(readings, NotMeasured):
            return readings
        return () if result and not result.get("available") else None

    async def _environment(self) -> dict[str, str]:
        result = await self._probe("env")
        values = result.get("operator_env") or {}
        return {str(name): str(value) for name, value in values.items()}

    async def _assemblers(self, cause: Cause) -> Mapping[str, Any]:
        if not isinstance(cause.facts, AssemblerFacts):
            return {}
        return await self._probe("ptxas", arch=cause.facts.arch)

    async def _probe(self, kind: str, **args: object) -> Mapping[str, Any]:
        if self._hands is None:
            return {}
        try:
            return await self._hands.probe(kind, **args)
        except LauncherError:
            return {}


def _candidates(probe: Mapping[str, Any]) -> tuple[AssemblerCandidate, ...]:
    try:
        return msgspec.convert(probe.get("candidates") or (), tuple[AssemblerCandidate, ...])
    except msgspec.ValidationError:
        return ()
