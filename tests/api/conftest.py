"""A watcher's API over a backend in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agent.errors import ConflictError, NotFoundError
from agent.model import Action, ActionState, Alert, AlertState, Incident
from agent.serve import AgentMetrics, Api, start_api
from tests.journal.builders import TestClock, action, incident

TOKEN = "0123456789abcdef"
ALERT = Alert(
    server="chat",
    labels={"alertname": "VLLMQueueLong", "severity": "warning", "engine": "0"},
    annotations={"summary": "Requests queue", "description": "12 wait"},
    state=AlertState.FIRING,
    active_at="2026-01-01T00:00:00.000Z",
    starts_at="2026-01-01T00:01:00.000Z",
    value=12.0,
)


class MemoryBackend:
    """Keeps what it was told."""

    def __init__(self) -> None:
        waiting = action("a-1", state=ActionState.AWAITING_APPROVAL)
        self.known: dict[str, Incident] = {
            "i-1": incident("i-1", actions=(action("a-0", state=ActionState.FAILED), waiting)),
            "i-2": incident("i-2"),
        }
        self.told: list[tuple[str, str]] = []
        self.broken = False
        self.silent: str | None = None

    def status(self) -> dict[str, object]:
        if self.broken:
            raise RuntimeError("a defect with a secret in it")
        return {"version": "0", "frozen": False, "servers": []}

    def alerts(self) -> tuple[Alert, ...]:
        return (ALERT,)

    def rules(self) -> list[dict[str, object]]:
        chat: dict[str, object] = {"server": "chat", "rule": "VLLMQueueLong", "kind": "alert", "state": "firing"}
        gpu: dict[str, object] = {"server": None, "rule": "VLLMGpuLost", "kind": "alert", "state": "inactive"}
        known = {"unknown": None, "unknown_kind": None}
        silent = {"unknown": self.silent, "unknown_kind": "needs-feature" if self.silent else None}
        return [{**chat, **known}, {**gpu, **silent}]

    def incidents(self, limit: int) -> tuple[Incident, ...]:
        return tuple(self.known.values())[:limit]

    def incident(self, incident_id: str) -> Incident | None:
        return self.known.get(incident_id)

    async def approve(self, action_id: str, actor: str) -> Action:
        return self._decide(action_id, actor, ActionState.APPROVED)

    async def deny(self, action_id: str, actor: str) -> Action:
        return self._decide(action_id, actor, ActionState.DENIED)

    async def freeze(self, actor: str) -> None:
        self.told.append(("freeze", actor))

    async def thaw(self, actor: str) -> None:
        self.told.append(("thaw", actor))

    async def reset_breaker(self, server: str | None, actor: str) -> tuple[str, ...]:
        self.told.append((f"reset {server}", actor))
        return ("chat",)

    def _decide(self, action_id: str, actor: str, state: ActionState) -> Action:
        for one in self.known["i-1"].actions:
            if one.id == action_id and one.state is ActionState.AWAITING_APPROVAL:
                self.told.append((f"{state.value} {action_id}", actor))
                return msgspec.structs.replace(one, state=state)
            if one.id == action_id:
                raise ConflictError(f"{action_id} is {one.state.value}", remedy="nothing to decide")
        raise NotFoundError(f"no action {action_id} is known", remedy="see `agent incidents`")


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def metrics() -> AgentMetrics:
    return AgentMetrics(TestClock())


@pytest.fixture
async def api(backend: MemoryBackend, metrics: AgentMetrics) -> AsyncIterator[Api]:
    running = await start_api(backend, "127.0.0.1:0", lambda: TOKEN, metrics)
    yield running
    await running.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "token").write_text(TOKEN + "\n")
    return folder
