"""A clock that a test moves, and small incidents."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

from agent.model import (
    Action,
    ActionState,
    Confidence,
    Evidence,
    Incident,
    IncidentState,
    Mode,
    Severity,
    rfc3339,
)


class TestClock:
    """Wall and monotonic time move together, and only when told."""

    __test__ = False

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.seconds + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        due = [future for at, future in self._sleepers if at <= self.seconds]
        self._sleepers = [pair for pair in self._sleepers if pair[0] > self.seconds]
        for future in due:
            if not future.done():
                future.set_result(None)


def incident(
    id: str = "i-1",
    state: IncidentState = IncidentState.OPEN,
    clock: TestClock | None = None,
    *,
    server: str = "chat",
    fault: str = "oom-serving",
    summary: str = "CUDA out of memory: 1.00 GiB asked, 0.87 GiB free",
    evidence: tuple[Evidence, ...] = (Evidence(source="log", where="a.log:7", text="OutOfMemoryError"),),
    actions: tuple[Action, ...] = (),
    note: str | None = None,
) -> Incident:
    return Incident(
        id=id,
        server=server,
        fault=fault,
        confidence=Confidence.CERTAIN,
        severity=Severity.CRITICAL,
        state=state,
        opened_at=rfc3339((clock or TestClock()).now()),
        summary=summary,
        evidence=evidence,
        actions=actions,
        note=note,
    )


def action(
    id: str = "a-1",
    incident: str = "i-1",
    state: ActionState = ActionState.RUNNING,
    clock: TestClock | None = None,
    *,
    expires_at: str | None = None,
    outcome: str | None = None,
) -> Action:
    return Action(
        id=id,
        incident=incident,
        action="oom-reduce-batch",
        change="--max-num-seqs 64 → 32",
        why=("64 sequences at once asked for 1.00 GiB",),
        mode=Mode.AUTO,
        state=state,
        created_at=rfc3339((clock or TestClock()).now()),
        expires_at=expires_at,
        outcome=outcome,
        undo="agent overrides clear",
    )
