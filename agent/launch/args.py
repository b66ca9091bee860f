"""Reading the arguments of a verb: each with its type, an unknown one refused.

In: the ``args`` object of a request. Out: typed values. Never guesses: a wrong type is code ``bad-args``.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.errors import LauncherError


def bad(message: str, remedy: str) -> LauncherError:
    """A wrong argument."""
    return LauncherError(message, code="bad-args", remedy=remedy)


class Reader:
    """The arguments of one request; ``known`` are all that the verb takes."""

    def __init__(self, args: Mapping[str, object], *known: str) -> None:
        unknown = sorted(set(args) - set(known))
        if unknown:
            raise bad(f"unknown argument {unknown[0][:200]!r}", f"use {', '.join(known) or 'no arguments'}")
        self._args = args

    def text(self, name: str, default: str | None = None) -> str:
        value = self._args.get(name, default)
        if not isinstance(value, str) or len(value) > 4096:
            raise bad(f"{name} must be a string", f"send {name} as a string")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._args.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise bad(f"{name} must be a whole number from 0", f"send {name} as a number")
        return value

    def seconds(self, name: str, default: float | None, maximum: float) -> float:
        value = self._args.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= maximum:
            raise bad(f"{name} must be seconds from 0 to {maximum:g}", f"send {name} as a number")
        return float(value)

    def switch(self, name: str, default: bool) -> bool:
        value = self._args.get(name, default)
        if not isinstance(value, bool):
            raise bad(f"{name} must be true or false", f"send {name} as a boolean")
        return value
