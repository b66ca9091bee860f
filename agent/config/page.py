"""The page ``docs/configuration.md``, written from the published schema so that it cannot drift.

In: nothing. Out: Markdown: how a configuration is read, and every key with its default and meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent.config.load import PREFIX, SECRET_NAMES
from agent.config.schema import configuration_schema

_HEAD = f"""\
# Configuration

One YAML file, named with `--config FILE`; without it the defaults hold. It is read strictly: an unknown key, a wrong
type or a key given twice is an error with file, line and remedy. `agent config check [FILE]` checks it,
`agent config show [FILE]` prints what it comes to, `agent schema configuration` prints its JSON Schema.

An environment variable overrides a key: `{PREFIX}BUDGET__ACTIONS=5` is `budget.actions`,
`{PREFIX}ACTIONS__PTXAS_PATH=off` is `actions.ptxas-path`; a value is a YAML scalar, `[a, b]` or `{{a: b}}`.
Secrets come from the environment alone: {", ".join(f"`{name}`" for name in SECRET_NAMES)}, or the same name with
`_FILE` for a file that holds it. They are never printed. The modes of actions: [actions.md](actions.md).

| key | default | meaning |
| --- | --- | --- |
"""


def configuration_page() -> str:
    """The text of ``docs/configuration.md``."""
    schema = configuration_schema()
    return _HEAD + "".join(f"| `{key}` | {default} | {text} |\n" for key, default, text in _rows(schema))


def _rows(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    definitions: dict[str, Any] = schema["$defs"]

    def walk(name: str, prefix: str) -> Iterator[tuple[str, str, str]]:
        definition = definitions[name]
        required = definition.get("required", [])
        for key, value in definition["properties"].items():
            inner = value.get("$ref") or value.get("items", {}).get("$ref", "")
            target = str(inner).rpartition("/")[2]
            meaning = _text(value, definitions.get(target, {}))
            if target and "properties" in definitions[target]:
                many = "items" in value
                yield f"{prefix}{key}", "`[]`" if many else "", meaning
                yield from walk(target, f"{prefix}{key}{'[]' if many else ''}.")
            else:
                yield f"{prefix}{key}", "required" if key in required else _default(value), meaning

    yield from walk("Settings", "")


def _default(value: dict[str, Any]) -> str:
    return f"`{json.dumps(value['default'])}`" if "default" in value else "see actions.md"


def _text(value: dict[str, Any], target: dict[str, Any]) -> str:
    """The description of a key, else of its type, else of the one alternative that has any."""
    found = [value, *value.get("anyOf", []), target]
    text = next((str(one["description"]) for one in found if one.get("description")), "")
    return text.replace("|", "\\|").replace("\n", " ")
