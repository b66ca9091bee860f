"""``agent alerts``: what the rules say now, from the watcher; how many say nothing, and why."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from agent.cli.client import ApiClient, api_option, output_option
from agent.cli.incident_text import plain
from agent.model import Alert, AlertState

_ORDER = {"critical": 0, "warning": 1, "info": 2}


class _Alerts(msgspec.Struct):
    alerts: list[Alert]


class _Rule(msgspec.Struct):
    """What is read of a rule; ``unknown`` is the reason why it says nothing."""

    rule: str
    kind: str
    server: str | None
    unknown: str | None
    unknown_kind: str | None


class _Rules(msgspec.Struct):
    rules: list[_Rule]


@click.command()
@api_option
@click.option("--unknown", is_flag=True, help="List the rules that say nothing, with the reason.")
@output_option
def alerts(api: str, unknown: bool, output: str) -> None:
    """List what is firing or pending now, worst first."""
    client = ApiClient(api)
    body = client.get("/api/v1/alerts")
    silent = [
        one
        for one in msgspec.json.decode(client.get("/api/v1/rules"), type=_Rules).rules
        if one.unknown and one.kind == "alert"
    ]
    found = sorted(msgspec.json.decode(body, type=_Alerts).alerts, key=_worst)
    if output == "json":
        click.echo(msgspec.json.encode({"alerts": found, **({"unknown": silent} if unknown else {})}).decode())
        return
    click.echo(_table(found))
    if unknown:
        for one in silent:
            click.echo(plain(f"unknown  {one.rule} on {one.server or 'the agent'}: {one.unknown}"))
    elif silent:
        click.echo(f"{len(silent)} rules say nothing, with a reason each: agent alerts --unknown")


def _worst(alert: Alert) -> tuple[bool, int, str]:
    rank = _ORDER.get(alert.labels.get("severity", ""), len(_ORDER))
    return alert.state is AlertState.PENDING, rank, alert.active_at


def _table(found: Sequence[Alert]) -> str:
    if not found:
        return "no alerts"
    rows = [("STATE", "SEVERITY", "ALERT", "SERVER", "SINCE")]
    rows += [(one.state.value, one.labels.get("severity", ""), one.name, one.server, _since(one)) for one in found]
    texts = ["WHAT", *(one.annotations.get("description") or one.annotations.get("summary", "") for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, text in zip(rows, texts, strict=True):
        cells = [plain(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([*cells, plain(text)]).rstrip())
    return "\n".join(lines)


def _since(alert: Alert) -> str:
    return (alert.starts_at or alert.active_at)[:19] + "Z"
