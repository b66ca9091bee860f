"""``agent incidents`` and ``agent incident ID``: what happened, from the watcher or from its journal."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

import click
import msgspec

from agent.cli.client import ApiClient, NoWatcher, api_option, notice, output_option
from agent.cli.incident_text import incident_page, incident_table
from agent.cli.options import default_state_dir
from agent.errors import JournalError, NotFoundError
from agent.model import Incident, IncidentState

_STATES = [state.value for state in IncidentState]


class _List(msgspec.Struct):
    incidents: list[Incident]


def _state_dir_option() -> Path:
    return Path(os.environ.get("VLLM_AGENT__STATE_DIR") or default_state_dir())


@click.command()
@api_option
@click.option("--state-dir", type=click.Path(path_type=Path), help="The journal to read when no watcher answers.")
@click.option("--state", type=click.Choice(_STATES), help="Only incidents in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many, newest first.")
@output_option
def incidents(api: str, state_dir: Path | None, state: str | None, limit: int, output: str) -> None:
    """List incidents, newest first."""
    client = ApiClient(api)
    try:
        # A state is selected here, so ask for all that the API gives.
        body = client.get(f"/api/v1/incidents?limit={limit if state is None else 1000}")
        found = msgspec.json.decode(body, type=_List).incidents
    except NoWatcher as error:
        found = _from_journal(error, state_dir or _state_dir_option(), None)
    chosen = [one for one in found if state is None or one.state.value == state][:limit]
    if output == "json":
        click.echo(msgspec.json.encode({"incidents": chosen}).decode())
    else:
        click.echo(incident_table(chosen))


@click.command()
@click.argument("incident_id", metavar="ID")
@api_option
@click.option("--state-dir", type=click.Path(path_type=Path), help="The journal to read when no watcher answers.")
@output_option
def incident(incident_id: str, api: str, state_dir: Path | None, output: str) -> None:
    """Show one incident: cause, evidence, what was done, what to do next."""
    client = ApiClient(api)
    try:
        body = client.get(f"/api/v1/incidents/{urllib.parse.quote(incident_id, safe='')}")
        found = msgspec.json.decode(body, type=Incident)
    except NoWatcher as error:
        found = _from_journal(error, state_dir or _state_dir_option(), incident_id)[0]
    if output == "json":
        click.echo(msgspec.json.encode(found).decode())
    else:
        click.echo(incident_page(found))


def _from_journal(no_watcher: NoWatcher, state_dir: Path, incident_id: str | None) -> list[Incident]:
    """All incidents, or the one of that id. Raises JournalError that names both ways that failed."""
    from agent.journal import Journal

    try:
        journal = Journal.read(state_dir)
    except JournalError as error:
        raise JournalError(
            f"{no_watcher.message}; and {error.message}",
            where=f"{no_watcher.where}, {error.where}",
            remedy=error.remedy,
        ) from None
    notice(f"no watcher answers at {no_watcher.where}; this is the journal in {state_dir}")
    with journal:
        if incident_id is None:
            return list(journal.incidents(limit=1_000_000))
        found = journal.incident(incident_id)
    if found is None:
        raise NotFoundError(f"there is no incident {incident_id}", remedy="see `agent incidents`")
    return [found]
