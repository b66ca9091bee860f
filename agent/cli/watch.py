"""``agent watch``: the brain, by run-dir (with hands) or by URL and log (without)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from agent.cli.options import default_state_dir, watch_options


@click.command()
@click.option("--run-dir", type=click.Path(path_type=Path), help="Watch the server of the launcher with this run-dir.")
@click.option("--url", help="Attach to a server that nothing wraps: http(s)://HOST:PORT[/root] or unix:/PATH.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --url: the server's log file, to follow. Repeatable.",
)
@watch_options
def watch(
    run_dir: Path | None,
    url: str | None,
    logs: tuple[Path, ...],
    config: Path | None,
    listen: str | None,
    state_dir: Path | None,
    name: str | None,
    dry_run: bool,
) -> int:
    """Watch a server: with --run-dir under its launcher, which acts for the agent; with --url only looking."""
    from agent.watch import CommandLine, serve

    given = CommandLine(
        config=config,
        run_dir=run_dir,
        url=url,
        logs=logs,
        listen=listen,
        state_dir=state_dir,
        default_state_dir=default_state_dir(),
        name=name,
        dry_run=dry_run,
    )
    return asyncio.run(serve(given, environ=dict(os.environ), out=sys.stderr))
