"""A real vLLM under the agent, with settings that suit tests.

In: a folder, vLLM's flags, the test plugin's limit. Out: a :class:`Supervised` that is not yet started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import vllm_cpu
from tests.support.processes import free_port
from tests.support.supervised import Supervised

# A start takes 25 to 45 s on two cores, more than a minute right after the install (no compiled files yet).
START_SECONDS = 240.0
# Nobody waits for a person in a test, and a kill every minute must not use up an hour's budget.
PATIENT: dict[str, Any] = {
    "budget": {"actions": 100},
    "breaker": {"failures": 50},
    "backoff_seconds": [0],
    "verify": {"hold_seconds": 1},
}


def new_server(
    folder: Path,
    *flags: str,
    oom_above: int | None = None,
    settings: dict[str, Any] | None = None,
    environment_more: dict[str, str] | None = None,
    **options: Any,
) -> Supervised:
    """``agent run -- vllm serve …`` of the tiny model on a free port."""
    port = free_port()
    return Supervised(
        folder,
        vllm_cpu.serve_command(port, *flags),
        port,
        environment=vllm_cpu.environment(oom_above) | (environment_more or {}),
        settings=PATIENT if settings is None else settings,
        **options,
    )
