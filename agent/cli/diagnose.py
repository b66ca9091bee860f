"""``agent diagnose --log FILE…``: name the cause in a log. Prints and exits; touches nothing.

Exit: 0 healthy, 1 warning, 2 critical, 3 unknown, 64 a mistake of the caller.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from agent.diagnose import FAIL_ON, OUTPUTS, LogSource, diagnose_logs, exit_code, load_catalogue, render
from agent.errors import UsageError


def _source(name: str) -> LogSource:
    if name == "-":
        return LogSource("stdin", sys.stdin.buffer)
    return LogSource.open(Path(name))


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    # Not click.Choice: its usage error exits 2, which here means "critical".
    if value not in choices:
        raise UsageError(f"{name} {value}: unknown value", remedy=f"use one of {', '.join(choices)}")
    return value


def _terminal() -> bool:
    """Python has no ``sys.stdout`` where the caller closed it."""
    return sys.stdout is not None and sys.stdout.isatty()


@click.command()
@click.option("--log", "logs", multiple=True, metavar="FILE", help="A log file, gzip or not; - is stdin. Repeatable.")
@click.option("--output", default="text", metavar="|".join(OUTPUTS), help="Default text.")
@click.option(
    "--fail-on",
    default="warning",
    metavar="|".join(FAIL_ON),
    help="Least severity that fails. Default warning.",
)
def diagnose(logs: tuple[str, ...], output: str, fail_on: str) -> None:
    """Name the cause in a vLLM server's log: 0 healthy, 1 warning, 2 critical, 3 unknown."""
    _one_of("--output", output, OUTPUTS)
    _one_of("--fail-on", fail_on, FAIL_ON)
    if not logs:
        raise UsageError("nothing to diagnose", remedy="give --log FILE, or --log - for stdin")
    if logs.count("-") > 1:
        raise UsageError("--log - is given twice", remedy="stdin can be read once")
    diagnosis = diagnose_logs([_source(name) for name in logs], load_catalogue())
    color = output == "text" and _terminal() and not os.environ.get("NO_COLOR")
    click.echo(render(diagnosis, output, color), color=color or None)
    sys.exit(exit_code(diagnosis, fail_on))
