"""``agent config check|show``: whether the configuration holds, and what it comes to."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from agent.cli.client import output_option

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path))
_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="The configuration file.")


@click.group()
def config() -> None:
    """Check or show the configuration."""


@config.command("check")
@_FILE
@_CONFIG
def check(file: Path | None, config: Path | None) -> None:
    """Check FILE with the environment's overrides and secrets, and the rules that it names; the first error is said
    with its line.
    """
    from agent.config import load
    from agent.model import SystemClock
    from agent.notify import build_notifiers, build_pushers
    from agent.watch import read_rulebook

    path = _path(file, config)
    loaded = load(path, os.environ)
    book = read_rulebook(loaded) if loaded.rules.enabled else None
    pushers = build_pushers(loaded, SystemClock(), lambda notifier, outcome: None)
    notifiers = [*(one.name for one in build_notifiers(loaded)), *(one.name for one in pushers)]
    servers = [server.name for server in loaded.servers]
    click.echo(f"{path or 'defaults and environment'}: ok")
    click.echo(f"  servers: {', '.join(servers) or 'from the command line'}")
    click.echo(f"  notifiers: {', '.join(notifiers) or 'none'}")
    if book is not None:
        count = sum(1 for rule in book.by_profile[book.default].rules if not rule.record)
        click.echo(f"  alerts: {count}, thresholds of {', '.join(book.by_profile)}")


@config.command("show")
@_FILE
@_CONFIG
@output_option
def show(file: Path | None, config: Path | None, output: str) -> None:
    """Show the effective configuration; secrets are shown as the place they come from."""
    from agent.config import effective, effective_yaml, load

    loaded = load(_path(file, config), os.environ)
    if output == "json":
        click.echo(msgspec.json.encode(effective(loaded)).decode())
    else:
        click.echo(effective_yaml(loaded), nl=False)


def _path(file: Path | None, config: Path | None) -> Path | None:
    if file is not None and config is not None:
        raise click.UsageError("give the file once: FILE or --config FILE")
    return file or config
