"""The JSON Schema of the configuration file, generated from the tree so that it cannot drift.

In: nothing. Out: a JSON Schema (2020-12) as plain values; the action names of :data:`ACTIONS` are spelled
out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.config.actions import ACTIONS
from agent.config.tree import Settings


def configuration_schema() -> dict[str, Any]:
    """Schema of the YAML file (JSON values are what a schema is made of)."""
    schema = msgspec.json.schema(Settings)
    definition = schema["$defs"]["Settings"]
    modes = definition["properties"]["actions"]
    reference = modes.pop("additionalProperties")
    modes["properties"] = {
        policy.name: {**reference, "description": policy.changes, "default": policy.mode.value} for policy in ACTIONS
    }
    modes["additionalProperties"] = False
    modes.pop("default", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vLLM SRE agent configuration",
        **schema,
    }
