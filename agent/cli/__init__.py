"""The command line: parses, calls, prints. Every command is imported when it is called.

Exit codes: 0 done, 1 failed (said why), 64 the caller's mistake, 74 the answer could not be written; ``diagnose``
has its own (0 healthy, 1 warning, 2 critical, 3 unknown).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence

import click

from agent import __version__
from agent.errors import AgentError

EX_IOERR = 74

# command -> (module, attribute, one line of help); the help stands here so that --help imports nothing.
COMMANDS = {
    "run": ("agent.cli.run", "run", "Start a server under the launcher, with the watcher beside it."),
    "watch": (
        "agent.cli.watch",
        "watch",
        "Watch a server: by its launcher's run-dir, or by URL and log files.",
    ),
    "diagnose": ("agent.cli.diagnose", "diagnose", "Name the cause in a log."),
    "incidents": ("agent.cli.incidents", "incidents", "List incidents."),
    "incident": ("agent.cli.incidents", "incident", "Show one incident with its evidence and actions."),
    "alerts": ("agent.cli.alerts", "alerts", "List what is firing or pending."),
    "approve": ("agent.cli.actions", "approve", "Approve a waiting action."),
    "deny": ("agent.cli.actions", "deny", "Deny a waiting action."),
    "breaker": ("agent.cli.actions", "breaker", "Close the circuit breaker: agent breaker reset."),
    "freeze": ("agent.cli.actions", "freeze", "Stop all acting at once."),
    "thaw": ("agent.cli.actions", "thaw", "Allow acting again."),
    "overrides": ("agent.cli.overrides", "overrides", "List or clear what the agent added to the command."),
    "rules": ("agent.cli.rules", "rules", "Check, test, list, try and export alerting rules."),
    "config": ("agent.cli.config", "config", "Check or show the configuration."),
    "schema": ("agent.cli.schema", "schema", "Print a published JSON Schema."),
}
ELSEWHERE = {
    "launch": "Own a vLLM process: probes, restarts, verbs (agent launch --help).",
    "sim": "A vLLM stand-in with faults (agent sim --help).",
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, _, text) in COMMANDS.items()] + list(ELSEWHERE.items())
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agent")
def cli() -> None:
    """An SRE agent beside each vLLM server: evidence, cause, guarded repair, proof."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; errors are said on stderr with their remedy, never as a traceback."""
    try:
        result = cli.main(list(arguments), prog_name="agent", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return 64
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except AgentError as error:
        click.echo(f"agent: {error}", err=True)
        return error.exit_code
    except OSError as error:
        return _unwritable(error)
    return result if isinstance(result, int) else 0


def _unwritable(error: OSError) -> int:
    """The answer could not be printed (a full disk, a closed descriptor). 74 is EX_IOERR of sysexits.h."""
    with contextlib.suppress(OSError):
        reason = error.strerror or str(error)
        click.echo(f"agent: standard output cannot be written: {reason}\n  remedy: free the disk it goes to", err=True)
    # What is left in the buffer would fail once more, with a traceback, when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EX_IOERR
