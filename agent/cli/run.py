"""``agent run -- CMD…``: the launcher owns the server and the watcher; one process tree, one Ctrl-C.

The exit code is the launcher's: 0 after an asked stop, 2 where the server refused its own command line, 70 when it
gave up, 64 for a mistake of the caller. The watcher's end never ends the server, so it has no share in it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from agent.cli.options import watch_options


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="This server's own folder: control socket, token, log, exits "
    "(default: $VLLM_AGENT_RUN_DIR, /run/vllm-agent/default).",
)
@click.option(
    "--probe", default="127.0.0.1:9912", show_default=True, help="HOST:PORT of /livez and /readyz; off = none."
)
@click.option("--stop-timeout", type=float, help="Seconds from SIGTERM to SIGKILL at a stop (default 25).")
@watch_options
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...")
def run(
    run_dir: Path | None,
    probe: str,
    stop_timeout: float | None,
    config: Path | None,
    listen: str | None,
    state_dir: Path | None,
    name: str | None,
    dry_run: bool,
    command: tuple[str, ...],
) -> int:
    """Start COMMAND and watch it, for example: agent run -- vllm serve MODEL --port 8000"""
    from agent.launch import default_run_dir, server_api_key
    from agent.launch import main as launch

    folder = run_dir or Path(default_run_dir())
    watcher = [sys.executable, "-m", "agent", "watch", "--run-dir", str(folder)]
    # Only what was given: what was not may stand in the configuration.
    given = (("--config", config), ("--listen", listen), ("--state-dir", state_dir), ("--name", name))
    for flag, value in given:
        watcher += [flag, str(value)] if value is not None else []
    watcher += ["--dry-run"] if dry_run else []
    arguments = ["--run-dir", str(folder), "--probe", probe, "--watcher", json.dumps(watcher)]
    if stop_timeout is not None:
        arguments += ["--stop-timeout", str(stop_timeout)]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    key = server_api_key(command)
    if key is not None and not os.environ.get("VLLM_API_KEY_FILE"):
        # The watcher's proof request needs it. It stands in the server's command already, where vLLM prefers it to the
        # variable; it never goes over the control socket, which shows every secret as ***.
        os.environ["VLLM_API_KEY"] = key
    return launch([*arguments, "--", *command])
