"""The agent as its users run it, around the stand-in: one command, read through files and HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import free_port
from tests.support.supervised import Json, Supervised, agent_command

PATIENT: dict[str, Any] = {
    "backoff_seconds": [0],
    "poll_seconds": 0.2,
    "verify": {"hold_seconds": 0.5, "serving_seconds": 30, "request_seconds": 10},
}
Start = Callable[..., Supervised]


def stand_in(port: int, *flags: str) -> list[str]:
    """The command line of the stand-in on ``port``."""
    return [*agent_command(), "sim", "tiny", "--port", str(port), "--sim-step-seconds", "0.002", *flags]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``agent run -- agent sim FLAGS`` and ends it after the test."""
    with ExitStack() as stack:

        def begin(*flags: str, settings: dict[str, Any] | None = None, **options: Any) -> Supervised:
            port = free_port()
            agent = Supervised(
                tmp_path / "server",
                stand_in(port, *flags),
                port,
                settings={**PATIENT, **(settings or {})},
                **options,
            )
            return stack.enter_context(agent)

        yield begin


def serving(agent: Supervised) -> None:
    """Wait until the server answers and the agent says so."""
    agent.wait(30, "serving", lambda: agent.health() and agent.state() == "serving")


def order(agent: Supervised, *words: str) -> str:
    """One command of a person, against this agent; its output."""
    command = [sys.executable, "-m", "agent", *words, "--api", agent.api, "--run-dir", str(agent.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def only(incidents: list[Json]) -> Json:
    """The one incident."""
    assert len(incidents) == 1, [(one["class"], one["state"]) for one in incidents]
    return incidents[0]
