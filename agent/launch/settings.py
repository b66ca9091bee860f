"""What the command line of ``agent launch`` said, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.launch.command import Address, flag_value, words

STOP_SECONDS = 25.0
STOP_MARGIN_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """``probe`` None = no probe port; ``probe_required`` = the operator named it, so failing to bind
    is an error.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    run_dir: Path
    address: Address
    probe: tuple[str, int] | None = ("127.0.0.1", 9912)
    probe_required: bool = False
    stop_timeout: float = STOP_SECONDS
    gpu_wait: float = 30.0
    allow_uids: frozenset[int] = frozenset()
    allow_gids: frozenset[int] = frozenset()
    watcher: tuple[str, ...] = ()
    launch_id: str = field(default="")


def default_stop_timeout(argv: tuple[str, ...]) -> float:
    """25 s (a kubelet kills after 30), or vLLM's own ``--shutdown-timeout`` and a margin where that is
    longer.
    """
    try:
        own = float(flag_value(words(argv), "--shutdown-timeout") or 0)
    except ValueError:
        own = 0.0
    return max(STOP_SECONDS, own + STOP_MARGIN_SECONDS if own else 0.0)
