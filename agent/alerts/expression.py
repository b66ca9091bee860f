"""What an expression asks for, read from promql-parser's tree before anything is evaluated.

In: the text of an expression. Out: its selectors with the windows they need, how they are joined (so that what is
unknown can be told per family and per ``or`` branch), and the thresholds that a histogram's quantile is compared with.
Never here: values.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from datetime import timedelta

import promql_parser
import re2

from agent.series import Match, Matcher, Need
from agent.series.data import NAME
from agent.series.promql.compiler import parse

# These give nothing for a series with one sample in the window (promql/functions.go).
TWO_SAMPLES = frozenset(("rate", "increase", "delta", "irate", "idelta", "deriv", "predict_linear"))
_ABSENT = frozenset(("absent", "absent_over_time"))
_COMPARISONS = frozenset((">", "<", ">=", "<=", "==", "!="))
_SUFFIX = "_bucket"


@dataclasses.dataclass(frozen=True)
class Selector:
    """One selector. ``name`` None: it chooses by other labels. Windows in milliseconds.

    ``window_ms`` 0: an instant selector. ``reach_ms``: how far before the evaluation its window begins, through
    offsets and subqueries. ``least``: samples that each series must have in the window to give a value.
    """

    name: str | None
    matchers: tuple[Matcher, ...]
    window_ms: int = 0
    reach_ms: int = 0
    offset_ms: int = 0
    least: int = 1

    def takes(self, label: str, value: str) -> bool:
        """Whether its matchers on one label allow a value."""
        return all(_allows(matcher, value) for matcher in self.matchers if matcher.name == label)

    def fixed(self, label: str) -> str | None:
        """The value that an equality matcher asks of a label."""
        wanted = (m.value for m in self.matchers if m.name == label and m.match is Match.EQUAL)
        return next(wanted, None)


class Join(enum.Enum):
    """How the parts of an expression go together for what can be known of it."""

    ALL = "all"  # every part must be known
    ANY = "any"  # `or`: one known branch is enough
    ABSENT = "absent"  # the absence of its series is the subject


@dataclasses.dataclass(frozen=True)
class Part:
    """A selector, or a join of parts. A part without selectors (a number) is always known and says nothing."""

    join: Join = Join.ALL
    parts: tuple[Part, ...] = ()
    selector: Selector | None = None

    def selectors(self) -> Iterator[Selector]:
        """All selectors below, left to right."""
        if self.selector is not None:
            yield self.selector
        for part in self.parts:
            yield from part.selectors()


@dataclasses.dataclass(frozen=True)
class Measured:
    """A histogram's quantile held against a threshold: a number, or the selector of a recorded one.

    ``source`` is the bucket family, or a plain name, which may be the recording of a quantile.
    """

    source: str
    threshold: float | Selector


@dataclasses.dataclass(frozen=True)
class Expression:
    """What one expression asks for. ``quantile_of``: the bucket family where it is a histogram's quantile itself.

    ``moment``: it reads at a fixed time (``@``).
    """

    part: Part
    measured: tuple[Measured, ...]
    selectors: tuple[Selector, ...]
    quantile_of: str | None = None
    moment: bool = False

    def needs(self, query_offset_ms: int = 0) -> Iterator[Need]:
        """What the store must keep for this expression."""
        for one in self.selectors:
            named = () if one.name is None else (Matcher(NAME, Match.EQUAL, one.name),)
            rest = tuple(matcher for matcher in one.matchers if not named or matcher.name != NAME)
            yield Need((*named, *rest), one.reach_ms + query_offset_ms, lookback=not one.window_ms)


def read_expression(text: str) -> Expression:
    """Raises AgentError where the text is no PromQL."""
    tree, _ = parse(text)
    reader = _Reader()
    part = reader.part(tree, _Window())
    return Expression(part, tuple(reader.measured), tuple(part.selectors()), _buckets(tree), reader.moment)


@dataclasses.dataclass(frozen=True)
class _Window:
    """What functions and subqueries above a selector add to its window."""

    reach_ms: int = 0
    offset_ms: int = 0
    least: int = 1


class _Reader:
    """Walks the tree once."""

    def __init__(self) -> None:
        self.measured: list[Measured] = []
        self.moment = False

    def part(self, node: promql_parser.Expr, window: _Window) -> Part:
        if isinstance(node, promql_parser.VectorSelector):
            return self._leaf(node, 0, window)
        if isinstance(node, promql_parser.MatrixSelector):
            return self._leaf(node.vector_selector, _ms(node.range), window)
        if isinstance(node, promql_parser.BinaryExpr):
            return self._binary(node, window)
        if isinstance(node, promql_parser.Call):
            return self._call(node, window)
        if isinstance(node, promql_parser.AggregateExpr):
            inner = (self.part(node.expr, window), *([self.part(node.param, window)] if node.param else ()))
            return inner[0] if len(inner) == 1 else Part(parts=inner)
        if isinstance(node, promql_parser.SubqueryExpr):
            offset = _ms(node.offset)
            self.moment |= _is_moment(node.at)
            reach, moved = window.reach_ms + _ms(node.range) + offset, window.offset_ms + offset
            return self.part(node.expr, _Window(reach, moved, 1))
        if isinstance(node, promql_parser.ParenExpr | promql_parser.UnaryExpr):
            return self.part(node.expr, window)
        return Part()

    def _leaf(self, node: promql_parser.VectorSelector, range_ms: int, window: _Window) -> Part:
        self.moment |= _is_moment(node.at)
        return Part(selector=_selector(node, range_ms, window))

    def _binary(self, node: promql_parser.BinaryExpr, window: _Window) -> Part:
        left, right = self.part(node.lhs, window), self.part(node.rhs, window)
        operator = str(node.op)
        if operator in _COMPARISONS:
            for quantile, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
                self._measure(quantile, other)
        return Part(join=Join.ANY if operator == "or" else Join.ALL, parts=(left, right))

    def _call(self, node: promql_parser.Call, window: _Window) -> Part:
        name = node.func.name
        below = dataclasses.replace(window, least=2) if name in TWO_SAMPLES else window
        parts = tuple(self.part(argument, below) for argument in node.args)
        if name in _ABSENT:
            return Part(join=Join.ABSENT, parts=parts)
        return parts[0] if len(parts) == 1 else Part(parts=parts)

    def _measure(self, quantile: promql_parser.Expr, other: promql_parser.Expr) -> None:
        source, threshold = _buckets(quantile) or _plain_name(quantile), _threshold(other)
        if source is not None and threshold is not None:
            self.measured.append(Measured(source, threshold))


def _plain_name(node: promql_parser.Expr) -> str | None:
    if isinstance(node, promql_parser.ParenExpr):
        return _plain_name(node.expr)
    return _selector(node, 0, _Window()).name if isinstance(node, promql_parser.VectorSelector) else None


def _is_moment(at: promql_parser.AtModifier | None) -> bool:
    return at is not None and at.type == promql_parser.AtModifierType.At


def _selector(node: promql_parser.VectorSelector, range_ms: int, window: _Window) -> Selector:
    matchers = tuple(
        Matcher(m.name, _MATCHES[str(m.op)], m.value) for m in node.matchers.matchers if m.name != NAME or not node.name
    )
    name = node.name or next((m.value for m in matchers if m.name == NAME and m.match is Match.EQUAL), None)
    offset = _ms(node.offset)
    return Selector(
        name,
        matchers,
        range_ms,
        max(window.reach_ms + range_ms + offset, 0),
        window.offset_ms + offset,
        window.least,
    )


_MATCHES = {
    str(promql_parser.MatchOp.Equal): Match.EQUAL,
    str(promql_parser.MatchOp.NotEqual): Match.NOT_EQUAL,
    str(promql_parser.MatchOp.Re): Match.REGEX,
    str(promql_parser.MatchOp.NotRe): Match.NOT_REGEX,
}


def _allows(matcher: Matcher, value: str) -> bool:
    if matcher.match in (Match.EQUAL, Match.NOT_EQUAL):
        return (matcher.value == value) is (matcher.match is Match.EQUAL)
    found = re2.compile(f"^(?s:{matcher.value})$").match(value) is not None
    return found is (matcher.match is Match.REGEX)


def _buckets(node: promql_parser.Expr) -> str | None:
    """The bucket family below the ``histogram_quantile`` that a side of a comparison is made of."""
    if isinstance(node, promql_parser.ParenExpr):
        return _buckets(node.expr)
    if isinstance(node, promql_parser.AggregateExpr) and str(node.op) in ("max", "min", "avg"):
        return _buckets(node.expr)
    if not isinstance(node, promql_parser.Call) or node.func.name != "histogram_quantile":
        return None
    names = [one.name for one in _Reader().part(node.args[1], _Window()).selectors()]
    return next((name for name in names if name is not None and name.endswith(_SUFFIX)), None)


def _threshold(node: promql_parser.Expr) -> float | Selector | None:
    """A number or a plain selector on the other side; anything computed is left alone."""
    if isinstance(node, promql_parser.ParenExpr):
        return _threshold(node.expr)
    if isinstance(node, promql_parser.NumberLiteral):
        return float(node.val)
    if isinstance(node, promql_parser.VectorSelector):
        return _selector(node, 0, _Window())
    return None


def _ms(length: timedelta | None) -> int:
    return 0 if length is None else length // timedelta(milliseconds=1)
