"""Override sets: how an action's change joins what is in force.

The launcher replaces the whole set at once, so every plan carries the whole set. Flags are appended to the
operator's command and the last one wins (vLLM's parser), hence one value per flag here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agent.model import Change


def merged(base: Change, flags: Mapping[str, str] | None = None, env: Mapping[str, str | None] | None = None) -> Change:
    """``base`` with ``flags`` and ``env`` set; what they do not name stays."""
    wanted = dict(flags or {})
    kept = tuple((name, wanted.pop(name, value)) for name, value in base.flags)
    return Change(
        flags=kept + tuple(wanted.items()),
        env={**base.env, **(env or {})},
        unset_flags=tuple(name for name in base.unset_flags if name not in (flags or {})),
    )


def from_wire(document: Mapping[str, Any] | None) -> Change | None:
    """The launcher's ``overrides`` as a change; a switch has null on the wire and "" here. None = unreadable."""
    given = document or {}
    try:
        flags = [(name, "" if value is None else value) for name, value in given.get("flags") or ()]
        rest = {"env": given.get("env") or {}, "unset_flags": given.get("unset_flags") or ()}
        return msgspec.convert({"flags": flags, **rest}, Change)
    except (msgspec.ValidationError, TypeError, ValueError):
        return None


def empty(change: Change) -> bool:
    """True when the set adds nothing to the operator's command."""
    return not (change.flags or change.env or change.unset_flags)


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """The last value of ``--name VALUE`` or ``--name=VALUE`` on a command line; "" for a switch without
    value.
    """
    value: str | None = None
    for position, word in enumerate(argv):
        head, equals, tail = word.partition("=")
        if head.replace("_", "-") != name:
            continue
        following = argv[position + 1] if position + 1 < len(argv) else ""
        value = tail if equals else ("" if following.startswith("--") else following)
    return value


def in_force(base: Change, argv: Sequence[str], name: str) -> str | None:
    """The value of a flag as the next start would see it: the override, else the operator's."""
    return dict(base.flags).get(name, flag_value(argv, name))


def as_arguments(change: Change) -> str:
    """The set as a person would add it to the operator's command: variables first, then flags."""
    words = [f"{name}={value}" if value is not None else f"(unset {name})" for name, value in change.env.items()]
    words += [f"{name} {value}".rstrip() for name, value in change.flags]
    words += [f"(without {name})" for name in change.unset_flags]
    return " ".join(words)
