"""Series and samples as unit tests of rules write them: ``up{job="a"}`` and ``0 1+2x3 _ stale``.

In: two texts of a test file. Out: a label set, and what stands at each step: a number, Prometheus' staleness marker, or
None where there is no sample. The notation is Prometheus' (promql/promqltest/README.md): ``axn`` is a, n times more;
``a+bxn`` counts up from a, n steps; ``_xn`` leaves n steps out. Native histograms are refused.
"""

from __future__ import annotations

import re

from agent.alerts.expression import read_expression
from agent.errors import AgentError
from agent.series.data import NAME, STALE, Labels, Match, labels_of

Point = float | None

MAX_POINTS = 1_000_000
_NUMBER = r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[iI][nN][fF]|[nN][aA][nN])"
_ITEM = re.compile(rf"(?P<first>[+-]?{_NUMBER}|stale|_)(?P<step>[+-]{_NUMBER})?(?:x(?P<times>[0-9]+))?$")
_NOT_A_SERIES = 'is no series; write a name and labels: name{label="value"}'


class NotationError(ValueError):
    """What is wrong with a series or its values."""


def read_series(text: str) -> Labels:
    """The label set of ``name{label="value"}``; ``{}`` is the empty one."""
    if re.fullmatch(r"\s*\{\s*\}\s*", text):
        return ()
    try:
        expression = read_expression(text)
    except AgentError:
        raise NotationError(f"`{text}` {_NOT_A_SERIES}") from None
    [selector] = expression.selectors if len(expression.selectors) == 1 else [None]
    plain = re.fullmatch(r"\s*[a-zA-Z_:][a-zA-Z0-9_:]*\s*|\s*[a-zA-Z_:]*[a-zA-Z0-9_:]*\s*\{.*\}\s*", text, re.DOTALL)
    if selector is None or plain is None or any(one.match is not Match.EQUAL for one in selector.matchers):
        raise NotationError(f"`{text}` {_NOT_A_SERIES}")
    pairs = {one.name: one.value for one in selector.matchers}
    if selector.name is not None:
        pairs[NAME] = selector.name
    return labels_of(pairs)


def read_values(text: str) -> list[Point]:
    """The samples, one a step from time zero on."""
    if "{{" in text:
        raise NotationError("native histograms are not supported")
    found: list[Point] = []
    for item in text.split():
        match = _ITEM.match(item)
        if match is None:
            raise NotationError(f"`{item}` is no value; write a number, `_`, `stale`, `1x5`, `1+2x5` or `1-2x5`")
        found += _expanded(match)
        if len(found) > MAX_POINTS:
            raise NotationError(f"more than {MAX_POINTS} samples in one series")
    return found


def _expanded(match: re.Match[str]) -> list[Point]:
    first, step, times = match["first"], match["step"], match["times"]
    if times and len(times) > 7:
        raise NotationError(f"more than {MAX_POINTS} samples in one series")
    if step and (times is None or first in ("_", "stale")):
        raise NotationError(f"`{match[0]}`: a step needs a number before it and a count behind it, as in `1+2x5`")
    if first == "_":
        return [None] * (int(times) if times else 1)
    count = int(times) + 1 if times else 1
    if first == "stale":
        return [STALE] * count
    points: list[Point] = []
    value = float(first)
    for _ in range(count):
        points.append(value)
        value += float(step) if step else 0.0
    return points
