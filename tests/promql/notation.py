"""Series and values as the case files write them: ``name{label="value"} 1 2+3x4 _ stale {{...}}``.

In: one line. Out: the labels and what stands at each step: a float, :data:`OMITTED`, or :data:`HISTOGRAM` for a native
histogram, whose contents nobody reads here. What cannot be read is a :class:`NotationError`.
"""

from __future__ import annotations

import re
from enum import Enum

from agent.series.data import NAME, STALE, Labels, labels_of


class NotationError(ValueError):
    """A line that is not in the format."""


class Mark(Enum):
    """A step without a float."""

    OMITTED = "_"
    HISTOGRAM = "{{...}}"


OMITTED = Mark.OMITTED
HISTOGRAM = Mark.HISTOGRAM
Point = float | Mark

_NUMBER = r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[iI][nN][fF]|[nN][aA][nN])"
_ITEM = re.compile(rf"(?P<first>[+-]?{_NUMBER}|stale|_)(?P<step>[+-]{_NUMBER})?(?:x(?P<times>[0-9]+))?(?=\s|$)")
_HISTOGRAMS = re.compile(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x(?P<times>[0-9]+))?(?=\s|$)")
_IDENTIFIER = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_UNITS = (("y", 31_536_000_000), ("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_DURATION = re.compile("".join(rf"(?:(\d+){unit})?" for unit in ("y", "w", "d", "h", "m(?!s)", "s", "ms")))


def duration_ms(text: str) -> int:
    """``1h5m`` in milliseconds."""
    sign = -1 if text.startswith("-") else 1
    body = text.lstrip("+-")
    if body == "0":
        return 0
    match = _DURATION.fullmatch(body)
    if not body or match is None:
        raise NotationError(f"not a duration: {text!r}")
    parts = [int(part or 0) for part in match.groups()]
    return sign * (sum(part * size for part, (_, size) in zip(parts, _UNITS, strict=False)) + parts[-1])


def unquoted(text: str) -> str:
    """A string literal of Go; bytes that are no UTF-8 become lone surrogates."""
    if _STRING.fullmatch(text) is None:
        raise NotationError(f"not a string: {text}")
    body = text[1:-1]
    if text[0] == "`":
        return body
    return _ESCAPE.sub(_unescaped, body).encode(errors="surrogateescape").decode(errors="surrogateescape")


def _unescaped(match: re.Match[str]) -> str:
    two, four, eight, octal, single = match.groups()
    if two or octal:
        code = int(two, 16) if two else int(octal, 8)
        return chr(code) if code < 0x80 else chr(0xDC00 + code)
    if four or eight:
        return chr(int(four or eight, 16))
    return _SIMPLE.get(single, single)


def series(line: str) -> tuple[Labels, list[Point]]:
    """The labels of a line and its values by step."""
    labels, end = _metric(line)
    return labels, points(line[end:])


def number(text: str) -> float | None:
    """A number alone on a line; hexadecimal and octal integers as well."""
    try:
        return float(int(text.replace("_", ""), 0))
    except ValueError:
        return float(text) if re.fullmatch(rf"[+-]?{_NUMBER}", text) else None


def points(text: str) -> list[Point]:
    """Expand a sequence of values."""
    found: list[Point] = []
    position = _SPACE.match(text).end()  # type: ignore[union-attr]
    while position < len(text):
        match = _ITEM.match(text, position) or _HISTOGRAMS.match(text, position)
        if match is None:
            raise NotationError(f"not a value: {text[position:].split()[0]!r}")
        found += _expanded(match)
        position = _SPACE.match(text, match.end()).end()  # type: ignore[union-attr]
    return found


def _expanded(match: re.Match[str]) -> list[Point]:
    times = match["times"]
    if match.re is _HISTOGRAMS:
        return [HISTOGRAM] * (int(times) + 1 if times else 1)
    first, step = match["first"], match["step"]
    if first == "_":
        return [OMITTED] * (int(times) if times else 1)
    if step and not times:
        raise NotationError(f"a step without a count: {match[0]!r}")
    count = int(times) + 1 if times else 1
    if first == "stale":
        return [STALE] * count
    value = float(first)
    out: list[Point] = []
    for _ in range(count):
        out.append(value)
        value += float(step or 0)
    return out


def _metric(line: str) -> tuple[Labels, int]:
    pairs: dict[str, str] = {}
    position = 0
    name = _IDENTIFIER.match(line)
    if name:
        pairs[NAME] = name[0]
        position = name.end()
    if line[position : position + 1] == "{" and line[position : position + 2] != "{{":
        position = _label_set(line, position + 1, pairs)
    elif not name:
        raise NotationError(f"not a series: {line!r}")
    if position < len(line) and not line[position].isspace():
        raise NotationError(f"unexpected {line[position]!r} after the series' labels")
    return labels_of(pairs), position


def _label_set(line: str, position: int, pairs: dict[str, str]) -> int:
    while True:
        position = _SPACE.match(line, position).end()  # type: ignore[union-attr]
        if line[position : position + 1] == "}":
            return position + 1
        quoted = _STRING.match(line, position)
        plain = quoted or _IDENTIFIER.match(line, position)
        if plain is None:
            raise NotationError(f"not a label: {line[position:]!r}")
        name = unquoted(quoted[0]) if quoted else plain[0]
        position = _SPACE.match(line, plain.end()).end()  # type: ignore[union-attr]
        if line[position : position + 1] == "=":
            position = _SPACE.match(line, position + 1).end()  # type: ignore[union-attr]
            value = _STRING.match(line, position)
            if value is None:
                raise NotationError(f"no value for the label {name!r}")
            pairs[name] = unquoted(value[0])
            position = _SPACE.match(line, value.end()).end()  # type: ignore[union-attr]
        elif quoted:
            pairs[NAME] = name
        else:
            raise NotationError(f"no value for the label {name!r}")
        if line[position : position + 1] == ",":
            position += 1
        elif line[position : position + 1] != "}":
            raise NotationError(f"unexpected {line[position:]!r} among labels")
