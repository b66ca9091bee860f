"""Where a fault's runbook lies: ``runbooks/faults/<class>`` once its file exists, else None."""

from __future__ import annotations

from pathlib import Path

from agent.diagnose.catalogue import Fault


def runbook_of(fault: Fault) -> str | None:
    """The path without ``.md``, relative to the project; None until somebody wrote it."""
    name = fault.runbook or f"runbooks/faults/{fault.fault}"
    package = Path(__file__).resolve().parent.parent
    places = (package / "_data", package.parent)
    return name if any((place / f"{name}.md").is_file() for place in places) else None
