"""Durations as Prometheus writes them (``1h30m``): text to milliseconds and back.

The units stand in falling order, each once, whole numbers only (prometheus/common model/time.go). ``0`` needs no unit.
"""

from __future__ import annotations

import re

_UNITS = (
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
)
_PATTERN = re.compile("".join(rf"(?:([0-9]+){unit})?" for unit, _ in _UNITS))
_MAX_MS = (1 << 63) // 1_000_000


def parse_duration(text: str) -> int:
    """Milliseconds. Raises ValueError with what is wrong."""
    if text == "0":
        return 0
    if text == "":
        raise ValueError("the duration is empty")
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is no duration of Prometheus")
    total = sum(int(count) * size for count, (_, size) in zip(match.groups(), _UNITS, strict=True) if count)
    if total >= _MAX_MS:
        raise ValueError(f"`{text}` is too long")
    return total


def format_duration(milliseconds: int) -> str:
    """The shortest text that :func:`parse_duration` reads back; weeks and years only where they are whole."""
    if milliseconds == 0:
        return "0s"
    text = ""
    for unit, size in _UNITS:
        count, rest = divmod(milliseconds, size)
        if count and (unit not in ("y", "w") or rest == 0):
            text += f"{count}{unit}"
            milliseconds = rest
    return text
