"""``agent overrides list|clear``: what the agent added to the operator's command, asked of the launcher."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click


@click.group()
def overrides() -> None:
    """List or clear what the agent added to the command."""


def _call(run_dir: Path | None, verb: str) -> dict[str, Any]:
    from agent.launch import LauncherClient, default_run_dir

    return dict(asyncio.run(LauncherClient(Path(run_dir or default_run_dir())).call(verb)))


run_dir_option = click.option("--run-dir", type=click.Path(path_type=Path), help="The launcher's run-dir.")


@overrides.command("list")
@run_dir_option
@click.option("--output", type=click.Choice(["text", "json"]), default="text")
def list_overrides(run_dir: Path | None, output: str) -> None:
    """Show the overrides in force."""
    status = _call(run_dir, "status")
    current = status.get("overrides")
    if output == "json":
        click.echo(json.dumps({"overrides": current, "notice": status.get("overrides_notice")}))
        return
    if not current:
        click.echo(status.get("overrides_notice") or "none in force")
        return
    for flag, value in current.get("flags", []):
        click.echo(f"flag  {flag} {value}")
    for variable, value in current.get("env", {}).items():
        click.echo(f"env   {variable}={value}" if value is not None else f"env   {variable} unset")
    click.echo(f"since {current.get('created_at')} for incident {current.get('incident')}")


@overrides.command("clear")
@run_dir_option
def clear_overrides(run_dir: Path | None) -> None:
    """Drop them; the operator's own command runs at the next start."""
    _call(run_dir, "clear-overrides")
    click.echo("cleared; the next start runs the operator's command unchanged")
