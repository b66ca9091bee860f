"""label_replace and label_join: new labels from old ones.

In: an instant vector and strings. Out: the same values under the new labels. Regular expressions are RE2, match the
whole value, and ``$1``, ``${1}``, ``$name``, ``${name}`` and ``$$`` are expanded as Go's regexp.Expand does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import re2

from agent.series.data import NAME, Labels, labels_of
from agent.series.promql.errors import QueryError
from agent.series.promql.functions.arguments import text, vector
from agent.series.promql.value import Call, Element, Function, Vector

_REFERENCE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))")


def _label_replace(call: Call) -> Vector:
    target, template, source, expression = (text(call, position) for position in range(1, 5))
    pattern = _compiled(expression)
    if pattern is None:
        raise QueryError(f"invalid regular expression in label_replace(): {expression}")
    if not _is_label_name(target):
        raise QueryError(f"invalid destination label name in label_replace(): {target}")
    out = []
    for element in vector(call):
        match = pattern.search(_value(element.labels, source))
        if match is None:
            out.append(element)
        else:
            out.append(_with(element, target, _expanded(template, match)))
    return out


def _label_join(call: Call) -> Vector:
    target, separator = text(call, 1), text(call, 2)
    sources = [text(call, position) for position in range(3, len(call.arguments))]
    for source in sources:
        if not _is_label_name(source):
            raise QueryError(f"invalid source label name in label_join(): {source}")
    if not _is_label_name(target):
        raise QueryError(f"invalid destination label name in label_join(): {target}")
    return [
        _with(element, target, separator.join(_value(element.labels, source) for source in sources))
        for element in vector(call)
    ]


def _with(element: Element, label: str, value: str) -> Element:
    labels = labels_of({**dict(element.labels), label: value})
    # A name that the query itself gives stays.
    return Element(labels, element.value, element.drop_name and label != NAME)


def _value(labels: Labels, name: str) -> str:
    return next((value for label, value in labels if label == name), "")


def _is_label_name(name: str) -> bool:
    """Prometheus 3 takes every text in UTF-8; a byte that is none stands here as a lone surrogate."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


@lru_cache(maxsize=256)
def _compiled(expression: str) -> re2.Pattern | None:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(f"^(?s:{expression})$", options)
    except re2.error:
        return None


def _expanded(template: str, match: re2.Match) -> str:
    def replacement(reference: re.Match[str]) -> str:
        if reference[1]:
            return "$"
        return _group(match, reference[2] or reference[3])

    return _REFERENCE.sub(replacement, template)


def _group(match: re2.Match, name: str) -> str:
    """A group by number or name; one that is not there or took no part is empty."""
    groups = match.re.groupindex
    if name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0")):
        number = int(name)
        return (match.group(number) or "") if number <= match.re.groups else ""
    return (match.group(groups[name]) or "") if name in groups else ""


LABELS: Mapping[str, Function] = {
    "label_replace": Function("label_replace", _label_replace, drops_name=False),
    "label_join": Function("label_join", _label_join, drops_name=False),
}
