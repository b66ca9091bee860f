"""One line of an exposition: name, labels, value, timestamp, exemplar.

In: the text of one line that is no comment and not blank. Out: a :class:`Line`, or ValueError with the reason in words.
It reads the classic text format 0.0.4, OpenMetrics 1.0 and the quoted UTF-8 names of Prometheus 3
(``{"a.b",x="y"} 1``). It is the slow and exact path, taken once for each series; :mod:`agent.series.exposition`
remembers what it found. Numbers are read as Prometheus reads them (model/textparse, parseFloat): no ``_``, no
hexadecimal, nothing too large for a float.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent.series.data import NAME, Labels

_METRIC = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_ITEM = re.compile(rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|({_QUOTED}))[ \t]*(?:=[ \t]*({_QUOTED})[ \t]*)?")
_CLOSE = re.compile(r"[ \t]*\}[ \t]*")
_EXEMPLAR = re.compile(r"#[ \t]*\{")
_ESCAPE = re.compile(r'\\([\\"n])')
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}
_WHOLE = re.compile(r"[+-]?[0-9]+")
MAX_MS = 2**62


class Line(NamedTuple):
    """``key`` is the raw text before the blank that precedes the value; ``time_ms`` None where no timestamp stands."""

    key: str
    labels: Labels
    value: float
    time_ms: int | None


def number(text: str) -> float:
    """A sample's value; raises ValueError. ``text`` may have blanks around it."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"the value {text.strip()[:40]!r} is no number") from None
    if value - value != 0.0:  # NaN or an infinity: it must have been written as one
        if "n" not in text and "N" not in text:
            raise ValueError(f"the value {text.strip()!r} is too large")
        return value
    if "_" in text or not text.isascii():
        raise ValueError(f"the value {text.strip()[:40]!r} is no number")
    return value


def timestamp(text: str, *, openmetrics: bool) -> int:
    """Milliseconds since the epoch; the classic format writes whole milliseconds, OpenMetrics seconds."""
    if not openmetrics:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"the timestamp {text!r} is no whole number of milliseconds")
        time_ms = int(text) if len(text) < 32 else MAX_MS
    else:
        seconds = number(text)
        if seconds - seconds != 0.0:
            raise ValueError(f"the timestamp {text!r} is no moment")
        time_ms = int(seconds * 1000)
    if abs(time_ms) >= MAX_MS:
        raise ValueError(f"the timestamp {text!r} is out of range")
    return time_ms


def read_line(text: str, *, openmetrics: bool = False) -> Line:
    """Read one sample; raises ValueError."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("invalid UTF-8")
    labels, end = _labels(text)
    rest = text[end:]
    fields = rest.split(None, 1)
    if not fields:
        raise ValueError("the value is missing")
    start = end + len(rest) - len(rest.lstrip())
    if start == end and text[end - 1] not in " \t}":
        raise ValueError("no blank before the value")
    value = number(fields[0])
    time_ms = _after_value(fields[1] if len(fields) > 1 else "", openmetrics)
    return Line(text[: start - 1] if text[start - 1] == " " else text[:start], labels, value, time_ms)


def _after_value(text: str, openmetrics: bool) -> int | None:
    """The timestamp. What follows it may only be an exemplar, which is not read: a broken one costs no sample."""
    text = text.strip()
    if not text:
        return None
    if _EXEMPLAR.match(text):
        return None
    head, *tail = text.split(None, 1)
    if tail and not _EXEMPLAR.match(tail[0]):
        raise ValueError(f"text after the timestamp: {tail[0][:40]!r}")
    return timestamp(head, openmetrics=openmetrics)


def _labels(text: str) -> tuple[Labels, int]:
    """The canonical labels with the name among them, and where they end."""
    found = _METRIC.match(text)
    name, end = (found.group(1), found.end()) if found else (None, len(text) - len(text.lstrip(" \t")))
    pairs: list[tuple[str, str]] = []
    if text[end : end + 1] == "{":
        inner, pairs, end = _braces(text, end + 1)
        if inner is not None and name is not None:
            raise ValueError(f"two metric names: {name} and {inner}")
        name = name if inner is None else inner
    if not name:
        raise ValueError("no metric name")
    pairs.append((NAME, name))
    pairs.sort()
    if len({label for label, _ in pairs}) != len(pairs):
        raise ValueError("a label stands twice")
    return tuple(pair for pair in pairs if pair[1]), end


def _braces(text: str, position: int) -> tuple[str | None, list[tuple[str, str]], int]:
    """What stands in braces: a quoted name, the label pairs, and the end. ``position`` is after the opening one."""
    name: str | None = None
    pairs: list[tuple[str, str]] = []
    while True:
        closing = _CLOSE.match(text, position)
        if closing:
            return name, pairs, closing.end()
        item = _ITEM.match(text, position)
        if item is None:
            raise ValueError(f"broken labels at column {position + 1}")
        bare, quoted, value = item.groups()
        if value is not None:
            pairs.append((bare if quoted is None else unescape(quoted[1:-1]), unescape(value[1:-1])))
        elif quoted is not None and name is None:
            name = unescape(quoted[1:-1])
        else:
            raise ValueError(f"broken labels at column {position + 1}")
        position = item.end()
        if text[position : position + 1] == ",":
            position += 1
        elif text[position : position + 1] != "}":
            raise ValueError(f"broken labels at column {position + 1}")


def unescape(text: str) -> str:
    r"""``\\``, ``\"`` and ``\n`` undone; any other backslash stays."""
    return _ESCAPE.sub(lambda found: _ESCAPED[found.group(1)], text) if "\\" in text else text
