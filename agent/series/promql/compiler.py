"""From promql_parser's tree to nodes that evaluate; whatever is not supported is refused here, never at run time.

In: the text of a query. Out: the root node. Refusals name the function, operator or modifier, as the parser has no
positions. promql_parser checks types and arities as Prometheus does; what it lets pass and Prometheus does not is
refused here too: a zero range or step, an unknown function, a regular expression that RE2 does not take.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import promql_parser as parser
import re2

from agent.series.data import NAME, Match, Matcher
from agent.series.promql.aggregation import REDUCTIONS, Choice, CountValues, Grouping, Reduction
from agent.series.promql.binary import Matching, MixedBinary, ScalarBinary, SetBinary, VectorBinary
from agent.series.promql.calls import Application
from agent.series.promql.errors import QueryError, UnsupportedError
from agent.series.promql.labels import quoted
from agent.series.promql.nodes import Kind, Moment, Negation, Node, Number, Selector, Subquery, Text, When, Window
from agent.series.promql.source import Source, read, restored
from agent.series.promql.value import Function

_OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
_KINDS: dict[str, Kind] = {
    "ValueType.Scalar": "scalar",
    "ValueType.String": "string",
    "ValueType.Vector": "vector",
    "ValueType.Matrix": "matrix",
}
DEEPEST = 100
_SETS = frozenset(("and", "or", "unless"))
_CHOICES = frozenset(("topk", "bottomk"))


def parse(text: str) -> tuple[parser.Expr, Source]:
    """The tree; raises QueryError in the parser's words, UnsupportedError for what only the text shows."""
    source = read(text)
    try:
        return parser.parse(source.text), source
    except ValueError as error:
        raise _unparsed(str(error)) from None
    except BaseException as error:  # pyo3's PanicException is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise QueryError(f"invalid promql query: {error}") from None


def _unparsed(words: str) -> QueryError | UnsupportedError:
    unknown, _, name = words.partition("unknown function with name ")
    if not unknown and name:
        return QueryError(f'unknown function with name "{name.strip(chr(39))}"')
    return QueryError(words)


class Compiler:
    """One query's way from tree to nodes."""

    def __init__(self, source: Source, functions: Mapping[str, Function], *, delayed: bool) -> None:
        self._source = source
        self._functions = functions
        self._delayed = delayed
        self._read = 0
        self._depth = 0
        self._calls = list(source.calls)

    def root(self, expr: parser.Expr) -> Node:
        """Compile a whole query."""
        root = self.node(expr)
        _refuse_signed((root,), [self._signed(expr, (self._source.begins,))])
        return root

    def node(self, expr: parser.Expr) -> Node:
        """Compile one expression and all below it, in source order; raises QueryError where Python's stack may end."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise QueryError("the query is nested too deeply")
        node = self._small(expr)
        self._depth -= 1
        return node

    def _small(self, expr: parser.Expr) -> Node:
        match expr:
            case parser.NumberLiteral():
                return Number(expr.val, expr.prettify())
            case parser.StringLiteral():
                return Text(restored(expr.val), expr.prettify())
            case parser.ParenExpr():
                return self.node(expr.expr)
            case parser.UnaryExpr():
                before = self._read
                inner = self.node(expr.expr)
                return Negation(inner, self._key(expr, before), delayed=self._delayed)
        return self._larger(expr)

    def _larger(self, expr: parser.Expr) -> Node:
        match expr:
            case parser.VectorSelector():
                return self._selector(expr)
            case parser.MatrixSelector():
                return self._window(expr)
            case parser.SubqueryExpr():
                return self._subquery(expr)
            case parser.AggregateExpr():
                return self._aggregate(expr)
            case parser.BinaryExpr():
                return self._binary(expr)
            case parser.Call():
                return self._call(expr)
        raise UnsupportedError(f"the expression {type(expr).__name__} is not supported")

    def _when(self, at: parser.AtModifier | None, offset: datetime.timedelta | None) -> When:
        moment: Moment = None
        if at is not None:
            known = self._source.moments[self._read]
            self._read += 1
            if at.type == parser.AtModifierType.Start:
                moment = "start"
            elif at.type == parser.AtModifierType.End:
                moment = "end"
            elif known is None:
                raise QueryError("timestamp out of bounds for @ modifier")
            else:
                moment = known
        return When(moment, 0 if offset is None else milliseconds(offset))

    def _selector(self, expr: parser.VectorSelector) -> Selector:
        if expr.matchers.or_matchers:
            raise UnsupportedError("the operator or between label matchers is not supported (Prometheus 3 has none)")
        found = [(matcher.name, _OPERATORS[str(matcher.op)], matcher.value) for matcher in expr.matchers.matchers]
        if expr.name is not None:
            found.append((NAME, "=", expr.name))
        matchers = tuple(Matcher(restored(name), Match(op), restored(value)) for name, op, value in found)
        for matcher in matchers:
            _check_pattern(matcher)
        select_key = ",".join(f"{m.name}{m.match.value}{quoted(m.value)}" for m in matchers)
        before = self._read
        when = self._when(expr.at, expr.offset)
        return Selector(matchers, when, select_key, self._key(expr, before))

    def _key(self, expr: parser.Expr, before: int) -> str:
        """The parser's text, with the moments read since, as it writes some of them wrongly."""
        read_here = self._source.moments[before : self._read]
        fixed = [moment for moment in read_here if moment is not None]
        text = f"{expr.prettify()} # {fixed}" if fixed else expr.prettify()
        return f"delayed {text}" if self._delayed else text

    def _window(self, expr: parser.MatrixSelector) -> Window:
        range_ms = _positive(expr.range)
        before = self._read
        selector = self._selector(expr.vector_selector)
        return Window(selector, range_ms, self._key(expr, before))

    def _subquery(self, expr: parser.SubqueryExpr) -> Subquery:
        before = self._read
        inner = self.node(expr.expr)
        step_ms = None if expr.step is None else _positive(expr.step)
        when = self._when(expr.at, expr.offset)
        return Subquery(inner, _positive(expr.range), step_ms, when, self._key(expr, before))

    def _aggregate(self, expr: parser.AggregateExpr) -> Node:
        operator = str(expr.op)
        places = self._places(operator)
        before = self._read
        param = None if expr.param is None else self.node(expr.param)
        inner = self.node(expr.expr)
        key = self._key(expr, before)
        modifier = expr.modifier
        without = modifier is not None and modifier.type == parser.AggModifierType.Without
        grouping = Grouping(() if modifier is None else modifier.labels, without=without)
        if operator in REDUCTIONS or operator == "quantile":
            where = self._where(expr.param, places, 0) if expr.param is not None else ""
            return Reduction(operator, inner, param, grouping, key, where=where, delayed=self._delayed)
        if operator in _CHOICES and param is not None:
            return Choice(operator, inner, param, grouping, key)
        if operator == "count_values" and isinstance(param, Text):
            return CountValues(inner, param, grouping, key)
        raise UnsupportedError(f"the aggregation {operator} is not supported (experimental in Prometheus 3)")

    def _binary(self, expr: parser.BinaryExpr) -> Node:
        operator = str(expr.op)
        before = self._read
        left = self.node(expr.lhs)
        right = self.node(expr.rhs)
        key = self._key(expr, before)
        modifier = expr.modifier
        to_bool = modifier is not None and modifier.return_bool
        if modifier is not None and (modifier.fill_values.lhs is not None or modifier.fill_values.rhs is not None):
            raise UnsupportedError(f"the modifier fill of {operator} is not supported (experimental in Prometheus 3)")
        if left.kind == "scalar" and right.kind == "scalar":
            return ScalarBinary(operator, left, right, key)
        if left.kind == "scalar" or right.kind == "scalar":
            return MixedBinary(operator, left, right, key, to_bool=to_bool, delayed=self._delayed)
        matching = _matching(modifier)
        if operator in _SETS:
            return SetBinary(operator, left, right, matching, key)
        return VectorBinary(operator, left, right, matching, key, to_bool=to_bool, delayed=self._delayed)

    def _call(self, expr: parser.Call) -> Node:
        name = expr.func.name
        function = self._functions.get(name)
        if function is None:
            native = name.startswith("histogram_") and not expr.func.experimental
            why = "it needs native histograms" if native else "experimental in Prometheus 3"
            raise UnsupportedError(f"the function {name}() is not supported ({why})")
        places = self._places(name)
        before = self._read
        arguments = tuple(self.node(argument) for argument in expr.args)
        where = tuple(self._where(argument, places, index) for index, argument in enumerate(expr.args))
        signed = [self._signed(argument, places[index : index + 1]) for index, argument in enumerate(expr.args)]
        _refuse_signed(arguments, signed)
        kind = _KINDS[str(expr.func.return_type)]
        texts = tuple(argument.prettify() for argument in expr.args)
        key = self._key(expr, before)
        own_time = name == "timestamp" and isinstance(arguments[0], Selector) and not signed[0]
        return Application(
            function, arguments, kind, key, texts=texts, where=where, delayed=self._delayed, own_time=own_time
        )

    def _places(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Where the arguments of the next call in the text begin; nothing where text and tree do not agree."""
        if self._calls and self._calls[0][0] == name:
            return self._calls.pop(0)[1]
        self._calls.clear()
        return ()

    def _where(self, expr: parser.Expr, places: tuple[tuple[int, ...], ...], index: int) -> str:
        """The place of an argument without the parentheses around it; a subquery's is lost in Prometheus: (1:1)."""
        if index >= len(places):
            return ""
        depth = 0
        while isinstance(expr, parser.ParenExpr):
            expr = expr.expr
            depth += 1
        offsets = places[index]
        if isinstance(expr, parser.SubqueryExpr):
            return self._source.place(0)
        return self._source.place(offsets[min(depth, len(offsets) - 1)])

    def _signed(self, expr: parser.Expr, places: tuple[tuple[int, ...], ...]) -> bool:
        """Whether an argument is a unary plus: the parser leaves it out, but Prometheus sees another expression."""
        depth = 1
        while isinstance(expr, parser.ParenExpr):
            expr = expr.expr
            depth += 1
        return any(self._source.original[offset] == "+" for offsets in places for offset in offsets[:depth])


def _refuse_signed(arguments: tuple[Node, ...], signed: list[bool]) -> None:
    """Raise QueryError on a range vector with a plus before it."""
    if any(plus and argument.kind == "matrix" for argument, plus in zip(arguments, signed, strict=True)):
        raise QueryError("unary expression only allowed on expressions of type scalar or vector, got: matrix")


def _matching(modifier: parser.BinModifier | None) -> Matching:
    if modifier is None:
        return Matching((), on=False)
    labels = modifier.matching
    on = labels is not None and labels.type == parser.LabelModifierType.Include
    names = () if labels is None else tuple(labels.labels)
    include = tuple(modifier.group_labels or ())
    if modifier.card == parser.VectorMatchCardinality.ManyToOne:
        return Matching(names, on=on, cardinality="many-to-one", include=include)
    if modifier.card == parser.VectorMatchCardinality.OneToMany:
        return Matching(names, on=on, cardinality="one-to-many", include=include)
    return Matching(names, on=on)


def _check_pattern(matcher: Matcher) -> None:
    """Raise QueryError on what RE2 does not take, before anything else compiles it, as RE2 would log it."""
    if matcher.match in (Match.EQUAL, Match.NOT_EQUAL):
        return
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(f"^(?s:{matcher.value})$", options)
    except re2.error as error:
        raise QueryError(f"error parsing regexp {quoted(matcher.value)}: {_words(error)}") from None


def _words(error: re2.error) -> str:
    """RE2 gives its message as bytes."""
    words = error.args[0] if error.args else ""
    return words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)


def milliseconds(duration: datetime.timedelta) -> int:
    """A duration as Prometheus counts it: whole milliseconds, the rest cut off."""
    micros = (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    return int(micros / 1000) if micros < 0 else micros // 1000


def _positive(duration: datetime.timedelta | None) -> int:
    if duration is None or duration <= datetime.timedelta(0):
        raise QueryError("duration must be greater than 0")
    return milliseconds(duration)
