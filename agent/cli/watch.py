"""``agent watch``: the brain, by run-dir (with hands) or by URL and log (without)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from pathlib import Path

import click

from agent.cli.options import default_state_dir, watch_options

M_ARENA_MAX = -8
"""malloc.h."""


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

    _one_arena()
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


def _one_arena() -> None:
    """glibc gives each thread a heap of its own, and what a short-lived thread freed there is never used again. The
    watcher's threads only read files, so one heap serves them all and holds its memory some MiB lower (malloc/arena.c).
    """
    with contextlib.suppress(OSError, AttributeError):  # another libc has no such option
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
