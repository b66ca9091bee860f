"""The published JSON Schemas of this stage, made from its types: ``diagnosis`` and ``fault``.

The files in ``agent/schemas`` are this output; a test holds them to it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.diagnose.catalogue import Fault
from agent.model import Diagnosis

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def diagnosis_schema() -> dict[str, Any]:
    """What ``agent diagnose --output json`` prints."""
    return _schema(Diagnosis, "diagnosis", "The answer of `agent diagnose`, most likely cause first.")


def fault_schema() -> dict[str, Any]:
    """One file of the fault catalogue."""
    return _schema(Fault, "fault", "One class of the fault catalogue (rules/faults/<class>.yaml).")


def _schema(kind: type[msgspec.Struct], name: str, description: str) -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {
        "$schema": _DIALECT,
        "$id": f"{name}.schema.json",
        "title": name,
        "description": description,
        **reference,
        "$defs": components,
    }
