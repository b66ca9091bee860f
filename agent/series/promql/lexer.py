"""Tokens of a query with their places, which promql_parser's tree does not have.

Only as much of Prometheus' lexer (promql/parser/lex.go) as is needed to say where an argument stands and to read what
the parser reads otherwise than Prometheus does. What this lexer cannot read it leaves to the parser to complain about.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Token(NamedTuple):
    """``kind``: string, number, name, sign."""

    kind: str
    text: str
    start: int


_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`)
      | (?P<number>0[xX][0-9a-fA-F_]+(?![\w.])|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9_]+)?(?![\w.])
                   |[0-9][0-9a-zA-Z_.]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_:]*|:(?=[A-Za-z_])[A-Za-z0-9_:]*)
      | (?P<sign>==|!=|=~|!~|<=|>=|.)""",
    re.VERBOSE | re.DOTALL,
)
_COLON = re.compile(r":")


def tokens(text: str) -> list[Token]:
    """All tokens, comments and white space left out."""
    found = []
    index = 0
    brackets = 0
    while index < len(text):
        match = _COLON.match(text, index) if brackets else None
        match = match or _TOKEN.match(text, index)
        assert match is not None
        kind = match.lastgroup or "sign"
        word = match.group()
        if kind != "space":
            found.append(Token(kind, word, index))
        brackets += (word == "[") - (word == "]")
        index = match.end()
    return found
