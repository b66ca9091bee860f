"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def watch_options(function: F) -> F:
    """``--config --listen --state-dir --name --dry-run``."""
    options = (
        click.option("--config", type=click.Path(path_type=Path), help="The configuration file; none is needed."),
        click.option("--listen", help="HOST:PORT of the API and /metrics (default 127.0.0.1:9911)."),
        click.option(
            "--state-dir",
            type=click.Path(path_type=Path),
            help="Where the journal lives (default: /var/lib/vllm-agent for root, else ~/.local/state/vllm-agent).",
        ),
        click.option(
            "--name", help="The server's name in incidents and metrics (default: the run-dir's last part, else vllm)."
        ),
        click.option("--dry-run", is_flag=True, help="Say what would be done, do none of it."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def default_state_dir() -> Path:
    """``/var/lib/vllm-agent`` for root, the user's state folder otherwise (XDG base directories)."""
    if os.geteuid() == 0:
        return Path("/var/lib/vllm-agent")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "vllm-agent"
