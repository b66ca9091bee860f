"""``agent schema [NAME]``: the published JSON Schemas, as they lie in the package."""

from __future__ import annotations

import difflib
from importlib import resources

import click

from agent.errors import UsageError

_SUFFIX = ".schema.json"


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print the JSON Schema NAME; without NAME, list the names."""
    folder = resources.files("agent") / "schemas"
    names = sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))
    if name is None:
        click.echo("\n".join(names))
        return
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        remedy = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(names)}"
        raise UsageError(f"there is no schema `{name}`", remedy=remedy)
    click.echo((folder / f"{name}{_SUFFIX}").read_text(encoding="utf-8"), nl=False)
