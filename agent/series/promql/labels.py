"""Operations on label sets, each remembered, because a rule asks for the same ones at every tick.

In: canonical label sets (sorted, no empty value). Out: the same. A metric's name is the label ``__name__``; where an
operation makes another metric, Prometheus takes the name off together with the reserved ``__type__`` and ``__unit__``
(promql/engine.go, schema.IsMetadataLabel). Memories are bounded: when one is full it is emptied, and fills again with
what is in use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from agent.series.data import NAME, Labels

RESERVED = frozenset((NAME, "__type__", "__unit__"))
MEMORY = 20_000
_LEGACY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


class Memo(dict[Labels, Labels]):
    """A function of label sets that remembers: ``memo[labels]``."""

    def __init__(self, function: Callable[[Labels], Labels]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, labels: Labels) -> Labels:
        if len(self) >= MEMORY:
            self.clear()
        result = self[labels] = self._function(labels)
        return result


class Numbers(dict[Labels, int]):
    """Numbers for what a function makes of label sets: equal results have equal numbers; ``results[number]``.

    One hash of a long label set an element, then small integers: that is what grouping and matching cost.
    """

    def __init__(self, function: Callable[[Labels], Labels]) -> None:
        super().__init__()
        self._function = function
        self._known: dict[Labels, int] = {}
        self.results: list[Labels] = []

    def tidy(self) -> None:
        """Forget all when full; only between two evaluations, as numbers change."""
        if len(self) >= MEMORY or len(self.results) >= MEMORY:
            self.clear()
            self._known.clear()
            self.results.clear()

    def __missing__(self, labels: Labels) -> int:
        result = self._function(labels)
        number = self._known.setdefault(result, len(self.results))
        if number == len(self.results):
            self.results.append(result)
        self[labels] = number
        return number


def without_name(labels: Labels) -> Labels:
    """The label set of what is no longer that metric."""
    return tuple(pair for pair in labels if pair[0] not in RESERVED)


def keeping(names: Iterable[str]) -> Callable[[Labels], Labels]:
    """``by`` and ``on``: those labels alone."""
    kept = frozenset(names)
    return lambda labels: tuple(pair for pair in labels if pair[0] in kept)


def dropping(names: Iterable[str], also: Iterable[str] = (NAME,)) -> Callable[[Labels], Labels]:
    """``without`` and ``ignoring``: all but those and the name."""
    dropped = frozenset((*names, *also))
    return lambda labels: tuple(pair for pair in labels if pair[0] not in dropped)


def replaced(labels: Labels, changes: dict[str, str]) -> Labels:
    """The labels with some set; an empty value takes the label off."""
    merged = {**dict(labels), **changes}
    return tuple(sorted((name, value) for name, value in merged.items() if value != ""))


def quoted(text: str) -> str:
    """Go's %q, which Prometheus writes strings with; bytes that are no UTF-8 come as lone surrogates."""
    out = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            out.append("\\" + char)
        elif char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\x{code:02x}")
        elif char.isprintable():
            out.append(char)
        else:
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(out)}"'


def written(labels: Labels) -> str:
    """A label set as Prometheus writes it in its errors."""
    names = (name if _LEGACY.match(name) else json.dumps(name) for name, _ in labels)
    return "{" + ", ".join(f"{name}={quoted(value)}" for name, (_, value) in zip(names, labels, strict=True)) + "}"
