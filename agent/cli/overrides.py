"""``agent overrides list|clear``: what the agent added to the operator's command, asked of the launcher."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

run_dir_option = click.option("--run-dir", type=click.Path(path_type=Path), help="The launcher's run-dir.")


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the next start adds to the operator's command (schema: overrides)."""

    flags: tuple[tuple[str, str], ...] = ()
    env: dict[str, str | None] = {}
    unset_flags: tuple[str, ...] = ()
    incident: str | None = None
    created_at: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the launcher's status that is shown here."""

    overrides: Overrides | None = None
    overrides_notice: str | None = None


@click.group()
def overrides() -> None:
    """List or clear what the agent added to the command."""


@overrides.command("list")
@run_dir_option
@click.option("--output", type=click.Choice(["text", "json"]), default="text")
def list_overrides(run_dir: Path | None, output: str) -> None:
    """Show the overrides in force."""
    answer = _call(run_dir, "status")
    if output == "json":
        shown = {"overrides": answer.get("overrides"), "notice": answer.get("overrides_notice")}
        click.echo(msgspec.json.encode(shown))
        return
    status = msgspec.convert(answer, Status)
    if status.overrides_notice:
        click.echo(status.overrides_notice)
    for line in _lines(status.overrides) if status.overrides is not None else ("none in force",):
        click.echo(line)


@overrides.command("clear")
@run_dir_option
def clear_overrides(run_dir: Path | None) -> None:
    """Drop them; the operator's own command runs at the next start."""
    cleared = _call(run_dir, "clear-overrides").get("cleared", True)
    click.echo("cleared; the next start runs the operator's command unchanged" if cleared else "none were in force")


def _call(run_dir: Path | None, verb: str) -> dict[str, object]:
    from agent.launch import LauncherClient, default_run_dir

    return asyncio.run(LauncherClient(run_dir or default_run_dir()).call(verb))


def _lines(current: Overrides) -> Iterator[str]:
    yield from (f"flag  {flag} {value}" for flag, value in current.flags)
    yield from (f"flag  {flag} taken out" for flag in current.unset_flags)
    for variable, value in current.env.items():
        yield f"env   {variable}={value}" if value is not None else f"env   {variable} unset"
    reason = f"for incident {current.incident}" if current.incident else "by hand"
    yield f"since {current.created_at} {reason}"
