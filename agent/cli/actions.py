"""``agent approve|deny ID``, ``agent breaker reset``, ``agent freeze|thaw``: a person's decisions.

They are orders to the watcher, so they need its token. ``freeze``, ``thaw`` and ``breaker reset`` also
reach the launcher's run-dir, since stopping all acting must work when the watcher is the thing that is
broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import urllib.parse
from pathlib import Path

import click
import msgspec

from agent.cli.client import (
    ApiClient,
    NoWatcher,
    actor,
    api_option,
    find_run_dir,
    find_token,
    notice,
    output_option,
    run_dir_option,
)
from agent.cli.incident_text import plain
from agent.errors import AgentError, LauncherError
from agent.model import Action


@click.command()
@click.argument("action_id", metavar="ID")
@api_option
@run_dir_option
@output_option
def approve(action_id: str, api: str, run_dir: Path | None, output: str) -> None:
    """Approve a waiting action; ID is an action, or an incident with exactly one waiting action."""
    _decide("approve", "approved", action_id, api, run_dir, output)


@click.command()
@click.argument("action_id", metavar="ID")
@api_option
@run_dir_option
@output_option
def deny(action_id: str, api: str, run_dir: Path | None, output: str) -> None:
    """Deny a waiting action; ID is an action, or an incident with exactly one waiting action."""
    _decide("deny", "denied", action_id, api, run_dir, output)


@click.group()
def breaker() -> None:
    """The circuit breaker: open after failed repairs; the agent then leaves the server alone."""


@breaker.command("reset", short_help="Close it, so that the agent acts again.")
@click.argument("server", required=False)
@api_option
@run_dir_option
def breaker_reset(server: str | None, api: str, run_dir: Path | None) -> None:
    """Close the breaker of SERVER (default: of all servers), so that the agent acts again."""
    client = _client(api, run_dir)
    try:
        answer = msgspec.json.decode(client.post("/api/v1/breaker/reset", {"actor": actor(), "server": server}))
    except NoWatcher as error:
        _reset_launcher(find_run_dir(run_dir, os.environ), error)
        return
    names = ", ".join(answer["reset"])
    click.echo(f"closed: {names}" if names else "no breaker was open")


@click.command()
@api_option
@run_dir_option
def freeze(api: str, run_dir: Path | None) -> None:
    """Stop all acting at once, with or without a watcher; `agent thaw` ends it."""
    folder = find_run_dir(run_dir, os.environ)
    written = _touch(folder, frozen=True, named=run_dir is not None)
    try:
        _client(api, run_dir).post("/api/v1/freeze", {"actor": actor()})
    except NoWatcher:
        if not written:
            raise
        notice(f"no watcher answers at {api}; the launcher obeys {folder / 'freeze'}")
    except AgentError as error:
        if not written:
            raise
        notice(f"the watcher at {api} refuses ({error.message}); the launcher obeys {folder / 'freeze'}")
    click.echo("frozen: nothing is done to the server until `agent thaw`")


@click.command()
@api_option
@run_dir_option
def thaw(api: str, run_dir: Path | None) -> None:
    """Allow acting again; a server that died meanwhile is started again."""
    folder = find_run_dir(run_dir, os.environ)
    removed = _touch(folder, frozen=False, named=run_dir is not None)
    try:
        _client(api, run_dir).post("/api/v1/thaw", {"actor": actor()})
    except NoWatcher:
        if not removed:
            raise
        notice(f"no watcher answers at {api}; {folder / 'freeze'} is gone")
    click.echo("thawed: the agent acts again")


def _decide(verb: str, done: str, action_id: str, api: str, run_dir: Path | None, output: str) -> None:
    path = f"/api/v1/actions/{urllib.parse.quote(action_id, safe='')}/{verb}"
    body = _client(api, run_dir).post(path, {"actor": actor()})
    if output == "json":
        click.echo(body.decode())
        return
    action = msgspec.json.decode(body, type=Action)
    click.echo(f"{done} {action.id}: {action.action}, {plain(action.change)}")
    click.echo(f"follow it with `agent incident {action.incident}`")


def _client(api: str, run_dir: Path | None) -> ApiClient:
    return ApiClient(api, find_token(run_dir, os.environ))


def _touch(run_dir: Path, *, frozen: bool, named: bool) -> bool:
    """Write or remove the freeze file; False where there is no run-dir and none was named."""
    path = run_dir / "freeze"
    try:
        if not named and not run_dir.is_dir():
            return False
        if frozen:
            with contextlib.suppress(FileExistsError):
                # Never through a symbolic link that another member of the group has put there.
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise AgentError(
            f"cannot be {'written' if frozen else 'removed'}: {error.strerror}",
            where=str(path),
            remedy="name the launcher's run-dir with --run-dir and run as its user or group",
        ) from None
    return True


def _reset_launcher(run_dir: Path, no_watcher: NoWatcher) -> None:
    """Without a watcher only the launcher's own breaker can be closed."""
    from agent.launch import LauncherClient

    try:
        asyncio.run(LauncherClient(run_dir).call("reset"))
    except LauncherError as error:
        raise AgentError(
            f"{no_watcher.message}; and no launcher: {error.message}",
            where=no_watcher.where,
            remedy=no_watcher.remedy,
        ) from None
    notice(f"no watcher answers at {no_watcher.where}")
    click.echo("closed: the launcher's own breaker")
