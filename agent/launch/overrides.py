"""Overrides: the few flags and variables that a repair changed, kept beside the operator's command.

In: a proposal from the socket, or ``overrides.json``. Out: a checked set, and the argument list and
environment for the next start. Never edits the operator's files; a set belongs to one key (command, vLLM
version, GPUs) and is dropped, with a notice, when the key no longer fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from agent.errors import LauncherError
from agent.launch.allow import (
    ALLOWED_ENV,
    ALLOWED_FLAGS,
    SWITCHES,
    check_env,
    check_flag,
    merge_allocator,
    refused,
)
from agent.launch.command import can_append_flags, without_flags
from agent.launch.rundir import read_regular, reject

MAX_FILE_BYTES = 64 * 1024
LABEL_CHARS = 200


@dataclass(frozen=True)
class Key:
    """Whom a set belongs to. ``gpus`` None and ``vllm_version`` None mean "could not be determined"."""

    command_sha256: str
    vllm_version: str | None
    gpus: tuple[str, ...] | None

    def mismatch(self, other: Key) -> str | None:
        """What differs, or None. What either side could not determine does not count as a difference."""
        if self.command_sha256 != other.command_sha256:
            return "the command changed"
        if None not in (self.vllm_version, other.vllm_version) and self.vllm_version != other.vllm_version:
            return f"vLLM changed from {self.vllm_version} to {other.vllm_version}"
        if self.gpus is not None and other.gpus is not None and self.gpus != other.gpus:
            return "the set of GPUs changed"
        return None

    def to_json(self) -> dict[str, object]:
        gpus = None if self.gpus is None else list(self.gpus)
        return {"command_sha256": self.command_sha256, "vllm_version": self.vllm_version, "gpus": gpus}


@dataclass(frozen=True)
class Overrides:
    """A checked set. A flag's value is None for a switch, a variable's value None to unset it."""

    key: Key
    flags: tuple[tuple[str, str | None], ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    unset_flags: tuple[str, ...] = ()
    incident: str | None = None
    created_at: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "v": 1, "key": self.key.to_json(), "flags": [list(pair) for pair in self.flags],
            "env": dict(self.env),
            "unset_flags": list(self.unset_flags), "incident": self.incident, "created_at": self.created_at,
        }  # fmt: skip

    @property
    def changes_flags(self) -> bool:
        return bool(self.flags or self.unset_flags)

    def apply_argv(self, argv: Sequence[str]) -> list[str]:
        """The operator's command without the unset flags, with ours at the end (the last one wins in
        vLLM).
        """
        result = without_flags(argv, self.unset_flags, SWITCHES) if self.unset_flags else list(argv)
        for name, value in self.flags:
            result += [name] if value is None else [name, value]
        return result

    def apply_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment with ours in place; allocator settings join those of the operator."""
        result = dict(env)
        for name, value in self.env:
            if value is None:
                result.pop(name, None)
            elif ALLOWED_ENV[name].kind == "allocator":
                result[name] = merge_allocator(env.get(name, ""), value)
            else:
                result[name] = value
        return result


def build(
    args: Mapping[str, object], key: Key, argv: Sequence[str], env: Mapping[str, str], created_at: str
) -> Overrides:
    """A checked set from ``{flags, env, unset_flags?, incident}``. Raises LauncherError: refused, not-
    appendable.
    """
    flags = _flags(args.get("flags"))
    variables = args.get("env") or {}
    if not isinstance(variables, dict):
        raise refused("env must be an object of names and strings", 'send {"NAME": "value"}')
    unset = _unset(args.get("unset_flags"))
    if (flags or unset) and not can_append_flags(argv):
        raise LauncherError(
            "the operator's command is a wrapper: flags put at its end do not reach vLLM",
            code="not-appendable",
            remedy="use variables only, or change the wrapper to run `vllm serve` directly",
        )
    incident = args.get("incident")
    if incident is not None and not _is_label(incident):
        raise refused("incident must be a short printable string or null", "send the incident's id")
    checked = tuple(sorted(check_env(name, value, env) for name, value in variables.items()))
    return Overrides(key, flags, checked, unset, incident, created_at)


def _flags(value: object) -> tuple[tuple[str, str | None], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) in (1, 2) for pair in value):
        raise refused("flags must be a list of [name, value]", 'send [["--max-num-seqs", "32"]]')
    checked = tuple(check_flag(pair[0], pair[1] if len(pair) == 2 else None) for pair in value)
    names = [name for name, _ in checked]
    if len(set(names)) != len(names):
        raise refused("a flag is named twice", "name each flag once")
    if {"--enforce-eager", "--no-enforce-eager"}.issubset(names):
        raise refused("--enforce-eager and --no-enforce-eager exclude each other", "send one of them")
    return checked


def _unset(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise refused("unset_flags must be a list of names", 'send ["--enforce-eager"]')
    for name in value:
        if name not in ALLOWED_FLAGS:
            raise refused(f"flag {name!r} may not be unset", f"use one of {', '.join(ALLOWED_FLAGS)}")
    return tuple(value)


def load(path: Path, key: Key, argv: Sequence[str], env: Mapping[str, str]) -> tuple[Overrides | None, str | None]:
    """The set on disk, or None; and a notice where one was there that cannot be used.

    Such a file is kept as ``.rejected``.
    """
    found, problem = peek(path, key, argv, env)
    if problem is None:
        return found, None
    return None, f"overrides dropped: {problem}; the file is kept as {reject(path)}"


def peek(path: Path, key: Key, argv: Sequence[str], env: Mapping[str, str]) -> tuple[Overrides | None, str | None]:
    """The same without touching the file: the set, or what is wrong with it."""
    try:
        found = _parse(json.loads(read_regular(path, MAX_FILE_BYTES)), argv, env)
    except FileNotFoundError:
        return None, None
    except LauncherError as error:
        return None, error.message
    except (OSError, ValueError, RecursionError) as error:
        return None, f"unreadable ({error})"
    problem = found.key.mismatch(key)
    return (found, None) if problem is None else (None, problem)


def _parse(document: object, argv: Sequence[str], env: Mapping[str, str]) -> Overrides:
    if not isinstance(document, dict) or document.get("v") != 1:
        raise ValueError("not a version 1 document")
    key = document.get("key")
    if not isinstance(key, dict) or not isinstance(key.get("command_sha256"), str):
        raise ValueError("key is missing")
    gpus, version = key.get("gpus"), key.get("vllm_version")
    if gpus is not None and not (isinstance(gpus, list) and all(isinstance(gpu, str) for gpu in gpus)):
        raise ValueError("key.gpus is not a list of strings")
    if version is not None and not isinstance(version, str):
        raise ValueError("key.vllm_version is not a string")
    owner = Key(key["command_sha256"], version, None if gpus is None else tuple(gpus))
    created_at = document.get("created_at", "")
    return build(document, owner, argv, env, created_at if _is_label(created_at) else "")


def _is_label(value: object) -> TypeGuard[str]:
    """One word for a person's terminal: no control character, and not so long that the file is refused later."""
    return isinstance(value, str) and len(value) <= LABEL_CHARS and value.isascii() and value.isprintable()
