"""What a family's module reads out of the lines of a fault: numbers for remediation, words for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter

from agent.model import Facts, Mechanism

_UNITS = {"b": 1, "bytes": 1, "kib": 1 << 10, "kb": 1 << 10, "mib": 1 << 20, "mb": 1 << 20, "gib": 1 << 30,
          "gb": 1 << 30, "tib": 1 << 40, "g": 1 << 30}  # fmt: skip
SIZE = r"(-?\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B|GB|MB|G)"


@dataclass(frozen=True)
class Reading:
    """``words`` fill the templates of the catalogue; ``sentences`` follow the summary (the arithmetic)."""

    facts: Facts | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    mechanism: Mechanism | None = None
    sentences: Sequence[str] = ()


def to_bytes(number: str, unit: str) -> int | None:
    """``1.50``, ``GiB`` → bytes; None for an unknown unit."""
    factor = _UNITS.get(unit.lower())
    return round(float(number) * factor) if factor else None


def first_size(pattern: str, text: str) -> int | None:
    """The size captured by ``pattern`` (which ends in :data:`SIZE`) or None."""
    found = re.search(pattern, text)
    return to_bytes(found.group(1), found.group(2)) if found else None


def size(value: int) -> str:
    """Bytes for people: ``139.80 GiB``, ``220.00 MiB``."""
    if abs(value) >= 1 << 30:
        return f"{value / (1 << 30):.2f} GiB"
    return f"{value / (1 << 20):.2f} MiB" if abs(value) >= 1 << 20 else f"{value} bytes"


def fill(template: str, words: Mapping[str, str]) -> str | None:
    """The template with its facts, or None where one is unknown."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    return template.format_map(words) if all(name in words for name in names) else None
