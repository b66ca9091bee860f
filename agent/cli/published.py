"""Writes the published schemas: ``python -m agent.cli.published DIRECTORY``.

In: the structs that cross a process or a file, and the launcher's allow-list. Out: one JSON Schema
(2020-12) a name. What is a struct is generated from it; the two formats of the launcher, which is
standard library only and has no structs, are written here, with flags and variables taken from its
allow-list. A test holds the files in the package to this module.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from agent.config import configuration_schema
from agent.journal import ExportLine
from agent.launch import ALLOWED_ENV, ALLOWED_FLAGS
from agent.model import Action, Exit, Incident

Schema = dict[str, Any]  # a JSON Schema is free-form JSON

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TIME: Schema = {"type": "string", "format": "date-time"}
_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def published() -> dict[str, Schema]:
    """Name to schema; ``diagnosis`` and ``fault`` belong to the diagnosis and are not made here."""
    return {
        "action": _generated(Action, "An action, as the journal keeps and the API publishes it."),
        "configuration": configuration_schema(),
        "exit-record": _generated(Exit, "One line of the run-dir's exits.jsonl."),
        "incident": _generated(Incident, "An incident, as the journal keeps and the API publishes it."),
        "journal-export": _generated(ExportLine, "One line of the journal's export."),
        "overrides": {"$schema": _DIALECT, "title": "The run-dir's overrides.json.", **_overrides_file()},
        "verbs": _verbs(),
    }


def text(schema: Schema) -> str:
    """The file's content."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write every schema into the folder named."""
    if len(arguments) != 1:
        print("usage: python -m agent.cli.published DIRECTORY", file=sys.stderr)
        return 64
    for name, schema in published().items():
        (Path(arguments[0]) / f"{name}.schema.json").write_text(text(schema), encoding="utf-8")
    return 0


def _generated(struct: type[msgspec.Struct], title: str) -> Schema:
    return {"$schema": _DIALECT, "title": title, **msgspec.json.schema(struct, schema_hook=_anything)}


def _anything(kind: type) -> Schema:
    """An event's data: a JSON object whose values depend on its kind."""
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError(kind)


def _object(properties: dict[str, Schema], required: tuple[str, ...] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _change() -> dict[str, Schema]:
    flag: Schema = {"enum": list(ALLOWED_FLAGS)}
    pair: Schema = {
        "type": "array",
        "prefixItems": [flag, {"type": ["string", "null"], "description": "null for a switch"}],
        "minItems": 1,
        "maxItems": 2,
    }
    env = {name: {"type": ["string", "null"], "description": "null unsets it"} for name in ALLOWED_ENV}
    return {
        "flags": {"type": "array", "items": pair},
        "env": _object(env, ()),
        "unset_flags": {"type": "array", "items": flag},
        "incident": _TEXT_OR_NULL,
    }


def _overrides_file() -> Schema:
    key = _object(
        {
            "command_sha256": _TEXT,
            "vllm_version": _TEXT_OR_NULL,
            "gpus": {"type": ["array", "null"], "items": _TEXT},
        }
    )
    properties = {"v": {"const": 1}, "key": key, **_change(), "created_at": _TIME}
    return _object(properties, ("v", "key", "flags", "env", "incident", "created_at"))


def _verbs() -> Schema:
    seconds: Schema = {"type": "number", "minimum": 0}
    count: Schema = {"type": "integer", "minimum": 0}
    probe: dict[str, Schema] = {
        "name": {"enum": ["ptxas", "processes", "host", "shm", "env", "gpu"]},
        "arch": {"type": ["string", "number", "null"]},
        "costly": {"type": "boolean"},
    }
    arguments: dict[str, Schema] = {
        "status": _object({}),
        "restart": _object({"reason": _TEXT, "incident": _TEXT_OR_NULL, "verify_memory": {"type": "boolean"}}, ()),
        "stop": _object({"reason": _TEXT, "timeout": seconds}, ()),
        "drain": _object({"timeout": seconds}, ()),
        "set-overrides": _object(_change(), ()),
        "clear-overrides": _object({}),
        "probe": _object(probe, ("name",)),
        "end-orphans": _object({}),
        "verdict": _object({"state": _TEXT, "reason": _TEXT, "acting": {"type": "boolean"}}, ("state",)),
        "hold": _object({"exit_seq": count, "seconds": {**seconds, "maximum": 60}}),
        "events": _object({"after": count}, ()),
        "log": _object({"after": count}, ()),
        "freeze": _object({}),
        "thaw": _object({}),
        "reset": _object({}),
    }
    requests = [
        _object(
            {"v": {"const": 1}, "id": {}, "token": _TEXT, "verb": {"const": verb}, "args": schema},
            ("v", "id", "token", "verb"),
        )
        for verb, schema in arguments.items()
    ]
    error = _object({"code": _TEXT, "message": _TEXT, "remedy": _TEXT_OR_NULL})
    chunk = _object({"offset": count, "data": {"type": "string", "contentEncoding": "base64"}, "dropped": count})
    event: Schema = {
        "type": "object",
        "properties": {"seq": count, "at": _TIME, "at_monotonic": {"type": "number"}, "kind": _TEXT},
        "required": ["seq", "at", "kind"],
    }
    answers = [
        _object({"v": {"const": 1}, "id": {}, "ok": {"const": True}, "result": {"type": "object"}}),
        _object({"v": {"const": 1}, "id": {}, "ok": {"const": False}, "error": error}),
        _object({"v": {"const": 1}, "id": {}, "event": event}),
        _object({"v": {"const": 1}, "id": {}, "log": chunk}),
    ]
    return {
        "$schema": _DIALECT,
        "title": "The wire protocol of control.sock: one JSON object a line, at most 64 KiB.",
        "anyOf": [{"$ref": "#/$defs/request"}, {"$ref": "#/$defs/answer"}],
        "$defs": {"request": {"oneOf": requests}, "answer": {"oneOf": answers}},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
