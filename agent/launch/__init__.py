"""The hands: a supervisor that owns one vLLM server (standard library only).

In: the operator's command. Out: a running server with probes, a tee, exit records and a fixed menu of verbs
on a socket in the run-dir. It never judges what is wrong; a watcher does, through :class:`LauncherClient`.

Names load on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.launch.allow import ALLOWED_ENV, ALLOWED_FLAGS, EnvRule, FlagRule
    from agent.launch.cards import Cards, start_here
    from agent.launch.cli import main
    from agent.launch.client import LauncherClient, LogChunk
    from agent.launch.command import Address, can_append_flags, server_address, server_api_key
    from agent.launch.hostfacts import HostProbe, Subject
    from agent.launch.redaction import redact, redact_argv
    from agent.launch.rundir import default_run_dir
    from agent.launch.space import places

__all__ = [
    "ALLOWED_ENV", "ALLOWED_FLAGS", "Address", "Cards", "EnvRule", "FlagRule", "HostProbe", "LauncherClient",
    "LogChunk", "Subject", "can_append_flags", "default_run_dir", "main", "places", "redact", "redact_argv",
    "server_address", "server_api_key", "start_here",
]  # fmt: skip

_HOMES = {
    "ALLOWED_ENV": "allow", "ALLOWED_FLAGS": "allow", "EnvRule": "allow", "FlagRule": "allow",
    "HostProbe": "hostfacts", "LauncherClient": "client", "LogChunk": "client", "Subject": "hostfacts",
    "places": "space", "Cards": "cards", "start_here": "cards",
    "Address": "command", "can_append_flags": "command", "server_address": "command", "server_api_key": "command",
    "main": "cli", "default_run_dir": "rundir", "redact": "redaction", "redact_argv": "redaction",
}  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
