"""What Prometheus itself keeps behind a feature flag, or has for native histograms alone, found in a query's text.

In: a query. Out: why it counts as unsupported, or None. The reasons are a closed list, told from the text alone and
without the evaluator, so that a refusal for any other reason stays a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

EXPERIMENTAL = frozenset(
    (
        "double_exponential_smoothing", "end", "first_over_time", "histogram_quantiles", "limit_ratio", "limitk",
        "mad_over_time", "max_of", "min_of", "range", "sort_by_label", "sort_by_label_desc", "start", "step",
        "ts_of_first_over_time", "ts_of_last_over_time", "ts_of_max_over_time", "ts_of_min_over_time",
    )
)  # fmt: skip
NATIVE = frozenset(("histogram_avg", "histogram_count", "histogram_stddev", "histogram_stdvar", "histogram_sum"))
FILLS = frozenset(("fill", "fill_left", "fill_right"))
EXTENDED = frozenset(("anchored", "smoothed"))

_TOKEN = re.compile(
    r"\s+|\#[^\n]*|(?P<string>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)"
    r"|(?P<number>[0-9][0-9a-zA-Z_.]*(?:(?<=[eE])[+-][0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<word>(?:[a-zA-Z_]|:(?=[a-zA-Z_]))[a-zA-Z0-9_:]*)|(?P<sign></|>/|[=!<>~]=|=~|!~|.)",
    re.DOTALL,
)


def reason(query: str) -> str | None:
    """Why a query is beyond what Prometheus offers without a flag and without native histograms."""
    tokens = list(_tokens(query))
    for index, (kind, text) in enumerate(tokens):
        called = tokens[index + 1][1] in ("(", "by", "without") if index + 1 < len(tokens) else False
        found = _word_reason(text.lower(), called, tokens, index) if kind == "word" else None
        if found or (kind == "sign" and text in ("</", ">/")):
            return found or f"the operator {text} is for native histograms alone"
    if any(pair[0][1] == pair[1][1] == ":" for pair in pairwise(tokens)):
        return "an aligned subquery is behind a feature flag"
    return "a duration expression is behind a feature flag" if _has_duration_expression(tokens) else None


def _word_reason(word: str, called: bool, tokens: Sequence[tuple[str, str]], index: int) -> str | None:
    if word == "info" and called:
        return "info()"
    if word in EXPERIMENTAL and called and tokens[index - 1][1] != "@":
        return f"{word}() is behind a feature flag"
    if word in NATIVE and called:
        return f"{word}() is for native histograms alone"
    if word in FILLS and called:
        return f"{word}() is behind a feature flag"
    # A modifier stands behind a selector; a metric of that name stands elsewhere.
    if word in EXTENDED and index and (tokens[index - 1][1] in ("]", "}", ")") or tokens[index - 1][0] != "sign"):
        return f"{word} is behind a feature flag"
    return None


def _has_duration_expression(tokens: Sequence[tuple[str, str]]) -> bool:
    depth = 0
    for index, (kind, text) in enumerate(tokens):
        if kind == "sign" and text in "[]":
            depth += 1 if text == "[" else -1
        elif depth > 0 and (kind != "number" and text != ":"):
            return True
        elif kind == "word" and text.lower() == "offset":
            following = [token for token in tokens[index + 1 : index + 3] if token[1] not in ("+", "-")]
            if following and (following[0][1] == "(" or following[0][0] == "word"):
                return True
    return False


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(query):
        if match.lastgroup:
            yield match.lastgroup, match[0]
