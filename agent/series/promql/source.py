"""A query's text before it is parsed, and what only the text tells.

In: a query. Out: the text for promql_parser, the moments of the ``@`` modifiers, the places of calls. promql_parser
follows Prometheus 2.45; this is where it reads a text otherwise than Prometheus 3 (seen with 0.12):

- ``1_000`` and ``1_0.5e1_0``: underscores between digits, which it refuses, are taken out.
- ``foo @ -10``: it reads 0; the sign is taken out and the moment is read here, as are all moments, to the millisecond.
- ``"\\xc5"``: it reads a character where Go reads a byte; such strings are decoded here and written anew. A byte that
  is no UTF-8 travels as a private character and comes out as a lone surrogate.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from agent.series.promql.errors import QueryError, UnsupportedError
from agent.series.promql.lexer import Token, tokens

_VALUES = ("sum", "avg", "count", "min", "max", "group", "stddev", "stdvar", "quantile", "count_values")
AGGREGATIONS = frozenset((*_VALUES, "topk", "bottomk", "limitk", "limit_ratio"))
_CLAUSES = frozenset(("by", "without"))
_MATCHING = ("on", "ignoring", "group_left", "group_right", "fill", "fill_left", "fill_right")
_NOT_CALLED = frozenset((*_CLAUSES, *_MATCHING, "and", "or", "unless", "atan2", "bool", "offset"))
_EXPERIMENTAL = "is not supported (experimental in Prometheus 3)"
_OPERATORS = frozenset(("+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">="))
DEEPEST = 200
MOST_OPERATORS = 1000
LONGEST = 2**63 / 1e9
_PRIVATE = 0x10FF00
_UNDERSCORE = re.compile(r"(?<=[0-9a-fA-FxX])_(?=[0-9a-fA-F])")
_BYTE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|[0-7]{3})")
_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<o>[0-7]{3})|(?P<c>.))", re.DOTALL
)
_DURATION = re.compile(
    r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?\Z", re.ASCII
)
_UNITS = (31_536_000_000, 604_800_000, 86_400_000, 3_600_000, 60_000, 1000, 1)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"'}


class Source(NamedTuple):
    """``text`` for the parser; ``moments`` of the ``@`` modifiers in source order (ms; start and end are None);
    ``calls``: for each call and aggregation, in source order, the offsets at which its arguments begin; ``begins``:
    those at which the query itself does (itself, then within each parenthesis around it)."""

    original: str
    text: str
    moments: tuple[int | None, ...]
    calls: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    begins: tuple[int, ...]

    def place(self, offset: int) -> str:
        """Line and column as Prometheus ends its annotations with."""
        before = self.original[:offset]
        return f"({before.count(chr(10)) + 1}:{offset - before.rfind(chr(10))})"


def read(text: str) -> Source:
    """Prepare a query; raises QueryError and UnsupportedError."""
    found = tokens(text)
    _bound(found)
    out = []
    moments = []
    end = 0
    for index, token in enumerate(found):
        new = token.text
        if token.kind == "number":
            new = _plain(found, index)
        elif token.kind == "string":
            new = _rewritten(new)
        elif token.text == "@":
            moments.append(_moment(found, index))
        elif token.text == "-" and index and found[index - 1].text == "@":
            new = " "
        _refuse(found, index)
        out += [text[end : token.start], new]
        end = token.start + len(token.text)
    out.append(text[end:])
    return Source(text, "".join(out), tuple(moments), tuple(_calls(found)), _begins(found, 0, len(found)))


def _bound(found: list[Token]) -> None:
    """Raise QueryError on what would exhaust the parser's stack, which ends the process and not the query."""
    depth = 0
    operators = 0
    for token in found:
        depth += (token.text == "(") - (token.text == ")")
        operators += token.text in _OPERATORS or token.text.lower() in ("and", "or", "unless", "atan2")
        if depth > DEEPEST or operators > MOST_OPERATORS:
            raise QueryError("the query is nested too deeply")


def _plain(found: list[Token], index: int) -> str:
    """A number or duration as the parser takes it; raises QueryError on a duration that Go cannot hold."""
    text = _UNDERSCORE.sub("", found[index].text)
    value = _number(text)
    if value is None:
        return text
    before = [token.text.lower() for token in found[max(index - 2, 0) : index]]
    if value > LONGEST and ("offset" in before or before[-1:] in (["["], [":"])):
        raise QueryError("duration out of range")
    return "0" if value == 0 and text[-1] in "smhdwy" else text


def _moment(found: list[Token], index: int) -> int | None:
    """The milliseconds after an ``@``; None for ``start()`` and ``end()`` and what the parser will refuse."""
    rest = [token.text for token in found[index + 1 : index + 3]]
    sign = -1.0 if rest and rest[0] == "-" else 1.0
    if rest and rest[0] in "+-":
        rest = rest[1:]
    value = _number(rest[0]) if rest else None
    if value is None:
        return None
    seconds = sign * value
    if not math.isfinite(seconds) or abs(seconds) >= 9.223372036854775e18:
        raise QueryError(f"timestamp out of bounds for @ modifier: {seconds:f}")
    return math.floor(abs(seconds) * 1000 + 0.5) * int(sign)


def _number(text: str) -> float | None:
    """A number literal or a duration in seconds, None where it is something else."""
    plain = _UNDERSCORE.sub("", text)
    duration = _DURATION.match(plain)
    if duration and duration.group() and not plain.isdigit():
        return sum(int(part or 0) * unit for part, unit in zip(duration.groups(), _UNITS, strict=True)) / 1000
    try:
        if plain[:2].lower() == "0x":
            return float(int(plain, 16))
        if len(plain) > 1 and plain[0] == "0" and re.fullmatch(r"[0-7]+", plain):
            return float(int(plain, 8))
        return float(plain)
    except ValueError:
        return None


def _rewritten(literal: str) -> str:
    """A string literal with bytes in it, as one without."""
    if literal[0] == "`" or not _BYTE.search(literal):
        return literal
    raw = b""
    end = 1
    for match in _ESCAPE.finditer(literal, 1, len(literal) - 1):
        raw += literal[end : match.start()].encode()
        raw += _unescaped(match)
        end = match.end()
    raw += literal[end:-1].encode()
    text = raw.decode("utf-8", "surrogateescape")
    shown = "".join(chr(_PRIVATE + ord(char) - 0xDC00) if 0xDC80 <= ord(char) <= 0xDCFF else char for char in text)
    return '"' + "".join(_escaped(char) for char in shown) + '"'


def _unescaped(match: re.Match[str]) -> bytes:
    groups = match.groupdict()
    if groups["x"]:
        return bytes((int(groups["x"], 16),))
    if groups["o"]:
        if int(groups["o"], 8) > 0xFF:
            raise QueryError(f"error unquoting string: {match.group()} is no byte")
        return bytes((int(groups["o"], 8),))
    if groups["u"] or groups["U"]:
        code = int(groups["u"] or groups["U"], 16)
        return chr(code).encode("utf-8", "replace") if code <= 0x10FFFF else b"?"
    simple = _SIMPLE.get(groups["c"])
    return simple.encode() if simple is not None else match.group().encode()


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 else char


def restored(text: str) -> str:
    """A string from the tree, with bytes that are no UTF-8 as lone surrogates."""
    return "".join(
        chr(ord(char) - _PRIVATE + 0xDC00) if _PRIVATE + 0x80 <= ord(char) <= _PRIVATE + 0xFF else char for char in text
    )


def _refuse(found: list[Token], index: int) -> None:
    """Name what Prometheus keeps behind a flag and the parser has no words for."""
    token = found[index]
    if token.kind == "name" and token.text.lower() in ("anchored", "smoothed") and index:
        before = found[index - 1]
        if (before.kind == "name" and before.text.lower() not in _NOT_CALLED) or (before.text in "]})" and before.text):
            raise UnsupportedError(f"the modifier {token.text.lower()} {_EXPERIMENTAL}")
    if (
        token.text == "/"
        and index
        and found[index - 1].text in ("<", ">")
        and token.start == found[index - 1].start + 1
    ):
        raise UnsupportedError(f"the operator {found[index - 1].text}/ is not supported (it needs native histograms)")
    if token.text == "[":
        _refuse_duration(found, index + 1)
    elif token.kind == "name" and token.text.lower() == "offset" and index and index + 1 < len(found):
        after = found[index + 1]
        if _ends(found[index - 1]) and (after.text == "(" or after.kind == "name"):
            raise UnsupportedError(f"a duration expression in offset {_EXPERIMENTAL}")


def _ends(token: Token) -> bool:
    return token.text in ("]", "}", ")") or token.kind == "name"


def _refuse_duration(found: list[Token], index: int) -> None:
    """A range or step that is computed, or steps counted from the moment of evaluation (``::``)."""
    while index < len(found) and found[index].text != "]":
        token = found[index]
        if token.text == ":" and found[index - 1].text == ":":
            raise UnsupportedError(f"the aligned subquery :: {_EXPERIMENTAL}")
        if token.text == "$":
            return
        if token.kind == "name" or token.text in ("+", "-", "*", "/", "%", "^", "("):
            raise UnsupportedError(f"a duration expression in a range {_EXPERIMENTAL}")
        index += 1


def _calls(found: list[Token]) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Name and, for each argument, the offsets at which it begins: of itself, then within each parenthesis around."""
    calls = []
    braces = 0
    for index, token in enumerate(found):
        braces += (token.text == "{") - (token.text == "}")
        if braces or token.kind != "name" or index + 1 >= len(found):
            continue
        name = token.text.lower()
        opening = index + 1
        if name in AGGREGATIONS and found[opening].text.lower() in _CLAUSES:
            opening = _closing(found, opening + 1) + 1
        if opening >= len(found) or found[opening].text != "(" or name in _NOT_CALLED:
            continue
        if name in ("start", "end") and found[index - 1].text == "@":
            continue
        calls.append((name, _arguments(found, opening)))
    return calls


def _closing(found: list[Token], opening: int) -> int:
    """The index of the parenthesis that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(found)):
        depth += (found[index].text in "([{") - (found[index].text in ")]}")
        if depth == 0:
            return index
    return len(found)


def _arguments(found: list[Token], opening: int) -> tuple[tuple[int, ...], ...]:
    closing = _closing(found, opening)
    starts = []
    depth = 0
    begin = True
    for index in range(opening + 1, closing):
        text = found[index].text
        if begin:
            starts.append(_begins(found, index, closing))
        depth += (text in "([{") - (text in ")]}")
        begin = depth == 0 and text == ","
    return tuple(starts)


def _begins(found: list[Token], index: int, closing: int) -> tuple[int, ...]:
    """Where an expression begins, and where the expression in each parenthesis that opens there does."""
    offsets = []
    while index < closing:
        offsets.append(found[index].start)
        if found[index].text != "(":
            break
        index += 1
    return tuple(offsets)
