"""A server that lives by a fake clock: the hands and the view of remediation at once.

``life`` says how a start with given overrides goes: when it is ready, when it dies and of what. Nothing
sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec

from agent.errors import LauncherError
from agent.journal import Journal, new_id
from agent.model import (
    Cause,
    Change,
    Confidence,
    EffectiveSettings,
    Facts,
    Finding,
    GpuReading,
    Incident,
    IncidentState,
    Mechanism,
    MemoryFacts,
    MemoryHolder,
    Mode,
    Retry,
    Setting,
    Severity,
    State,
    rfc3339,
)
from agent.remediate import Guard, Policy, Remediator, Situation

MIB, GIB = 1 << 20, 1 << 30
MODES = {
    "restart": Mode.AUTO,
    "oom-expandable-segments": Mode.AUTO,
    "oom-reduce-batch": Mode.AUTO,
    "oom-fit-neighbour": Mode.AUTO,
    "wait-for-memory": Mode.AUTO,
    "kv-fit-length": Mode.APPROVE,
    "ptxas-path": Mode.AUTO,
    "end-orphans": Mode.AUTO,
}


def known(value: int | float | bool | str, source: str = "log line 7") -> Setting:
    return Setting(value=value, source=source)


def cause(
    fault: str,
    *,
    mechanism: Mechanism | None = None,
    facts: Facts | None = None,
    retry: Retry = Retry.NEEDS_CHANGE,
) -> Cause:
    return Cause(
        finding=Finding(
            fault=fault,
            mechanism=mechanism,
            confidence=Confidence.CERTAIN,
            severity=Severity.CRITICAL,
            summary=fault,
        ),
        facts=facts,
        retry=retry,
    )


# The numbers of one run on an H200: utilisation 0.98, 1024 sequences, 65,536 tokens, pool 130.68 GiB.
OWN_OOM = MemoryFacts(
    gpu=0,
    requested_bytes=GIB,
    total_bytes=int(139.80 * GIB),
    free_bytes=int(887.12 * MIB),
    process_bytes=int(138.93 * GIB),
    reserved_unallocated_bytes=int(1.76 * GIB),
)
POOL = int(130.68 * GIB)
H200 = EffectiveSettings(
    vllm_version="0.25.1",
    max_num_seqs=known(1024),
    max_num_batched_tokens=known(65536),
    max_model_len=known(8192),
    gpu_memory_utilization=known(0.98),
    kv_pool_bytes=known(POOL, "log line 28"),
    chunked_prefill=known(True),
)
NEIGHBOUR_OOM = MemoryFacts(
    gpu=0,
    requested_bytes=220 * MIB,
    total_bytes=int(139.80 * GIB),
    free_bytes=int(3.56 * MIB),
    process_bytes=int(40.42 * GIB),
    reserved_unallocated_bytes=int(117.70 * MIB),
    neighbours=(MemoryHolder(pid=3095, used_bytes=int(99.36 * GIB)),),
)


def card(free: float, total: float = 139.80, index: int = 0) -> GpuReading:
    """A card with ``free`` of ``total`` GiB."""
    return GpuReading(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        total_bytes=int(total * GIB),
        used_bytes=int((total - free) * GIB),
        free_bytes=int(free * GIB),
    )


def situation(settings: EffectiveSettings = H200, **fields: Any) -> Situation:
    given: dict[str, Any] = {"settings": settings, "modes": MODES, "vllm_version": "0.25.1", **fields}
    return Situation(**given)


class FakeClock:
    """Time that moves only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.epoch = datetime(2026, 1, 2, tzinfo=timezone.utc)

    def now(self) -> datetime:
        return self.epoch + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += max(seconds, 0.001)
        await asyncio.sleep(0)


@dataclass
class Life:
    """How one start goes; seconds from the start, None = never."""

    ready_after: float | None = 30.0
    dies_after: float | None = None
    of: Cause | None = None
    answers: bool = True
    line_before: float = 0.0
    tokens: float | None = 1.0


LifeOf = Callable[[Change, int], Life]


@dataclass
class World:
    """One server with its launcher. ``calls`` holds what the hands did, in order."""

    clock: FakeClock
    life: LifeOf
    base: Situation
    calls: list[tuple[str, Any]] = field(default_factory=list)
    overrides: Change = field(default_factory=Change)
    starts: int = 0
    started_at: float = 0.0
    current: Life = field(default_factory=Life)
    is_frozen: bool = False
    asked: State | None = None
    refuse: str | None = None
    on_wait: Callable[[], None] = lambda: None
    gpus: Callable[[], tuple[GpuReading, ...] | None] = lambda: None
    answered: int = 0
    orphans: tuple[int, ...] = ()

    def begin(self) -> None:
        self.starts += 1
        self.started_at = self.clock.seconds
        self.current = self.life(self.overrides, self.starts)

    def kill(self, of: Cause | None) -> None:
        """The running start dies now."""
        age = self.clock.seconds - self.started_at
        self.current = Life(ready_after=self.current.ready_after, dies_after=age, of=of)

    # hands

    async def set_overrides(self, change: Change, incident: str) -> None:
        self._call("set-overrides", change)
        self.overrides = change

    async def clear_overrides(self) -> None:
        self._call("clear-overrides", None)
        self.overrides = Change()

    async def restart(self, reason: str, incident: str, *, verify_memory: bool = True) -> None:
        self._call("restart", reason)
        self.begin()

    async def hold(self, exit_seq: int, seconds: float) -> None:
        self._call("hold", exit_seq)

    async def end_orphans(self) -> dict[str, Any]:
        self._call("end-orphans", None)
        ended, self.orphans = self.orphans, ()
        return {"ended": list(ended)}

    async def probe(self, kind: str, **args: object) -> dict[str, Any]:
        return {}

    async def status(self) -> dict[str, Any]:
        return {"overrides": msgspec.to_builtins(self.overrides)}

    def _call(self, verb: str, argument: Any) -> None:
        self.calls.append((verb, argument))
        if self.refuse == verb:
            raise LauncherError(f"{verb} refused", code="refused")

    # view

    def state(self) -> State:
        if self.asked is not None:
            return self.asked
        if self.ended():
            return State.DEAD
        ready = self.current.ready_after
        return State.SERVING if ready is not None and self._age() >= ready else State.STARTING

    def frozen(self) -> bool:
        return self.is_frozen

    def start_seq(self) -> int:
        return self.starts

    def ended(self) -> bool:
        return self.current.dies_after is not None and self._age() >= self.current.dies_after

    def exit_seq(self) -> int | None:
        return self.starts if self.ended() else None

    def log_seen(self, fault: str) -> bool:
        """The line comes with the death, or ``line_before`` seconds earlier."""
        lead = self.current.line_before
        return (
            self._age() + lead >= self._dies()
            and self.current.of is not None
            and self.current.of.finding.fault == fault
        )

    def metric(self, name: str) -> float | None:
        return None if self.current.tokens is None else self.answered * self.current.tokens

    async def request_answered(self) -> tuple[bool, str]:
        if self.current.answers:
            self.answered += 1
            return True, "HTTP 200 in 0.02 s"
        return False, "HTTP 500"

    async def wait_change(self, timeout: float) -> None:
        await self.clock.sleep(min(timeout, 1.0))
        self.on_wait()

    async def fresh_cause(self) -> Cause | None:
        return self.current.of

    def _age(self) -> float:
        return self.clock.seconds - self.started_at

    # what planning may know

    async def situation(self, cause: Cause) -> Situation:
        flags = dict(self.overrides.flags)
        settings = self.base.settings
        for name, field_name in (
            ("--max-num-seqs", "max_num_seqs"),
            ("--max-num-batched-tokens", "max_num_batched_tokens"),
            ("--gpu-memory-utilization", "gpu_memory_utilization"),
        ):
            if name in flags:
                settings = msgspec.structs.replace(settings, **{field_name: known(float(flags[name]), "override")})
        return msgspec.structs.replace(
            self.base,
            settings=settings,
            overrides=self.overrides,
            gpus=self.gpus(),
            state=self.state(),
            start_failed=self.ended() and (self.current.ready_after is None or self._dies() < self.current.ready_after),
        )

    def _dies(self) -> float:
        return self.current.dies_after if self.current.dies_after is not None else float("inf")

    def did(self, *verbs: str) -> list[tuple[str, Any]]:
        return [call for call in self.calls if call[0] in verbs]


@dataclass
class Agent:
    """One life of the agent over a world and a journal on disk."""

    world: World
    journal: Journal
    guard: Guard
    remediator: Remediator
    seen: list[Incident]

    def incident(self, of: Cause) -> Incident:
        made = Incident(
            id=new_id("i", self.world.clock),
            server="s",
            fault=of.finding.fault,
            mechanism=of.finding.mechanism,
            confidence=Confidence.CERTAIN,
            severity=Severity.CRITICAL,
            state=IncidentState.OPEN,
            opened_at=rfc3339(self.world.clock.now()),
            summary="",
        )
        self.journal.save_incident(made)
        return made

    async def repair(self, of: Cause) -> Incident:
        return await self.remediator.pursue(self.incident(of), of, self.world.situation)


def agent(world: World, folder: Path, policy: Policy | None = None, *, hands: bool = True) -> Agent:
    journal = Journal.open(folder, world.clock)
    guard = Guard(journal, world.clock, policy or Policy())
    seen: list[Incident] = []
    remediator = Remediator(
        server="s",
        hands=world if hands else None,
        view=world,
        ledger=journal,
        guard=guard,
        clock=world.clock,
        on_change=seen.append,
    )
    return Agent(world, journal, guard, remediator, seen)


def dead_world(life: LifeOf, of: Cause, *, served: bool = True, base: Situation | None = None, **more: Any) -> World:
    """A world whose first start has just died of ``of``."""
    world = World(clock=FakeClock(), life=life, base=base or situation(), **more)
    world.begin()
    world.current = Life(ready_after=30.0 if served else None, dies_after=60.0, of=of)
    world.clock.seconds += 60.0
    return world
