"""A query, compiled once and evaluated any number of times.

In: PromQL text. Out: values at a moment or over a range, as Prometheus 3 gives them with its default flags, and what
the query needs: which series, how far back, and which families its branches stand on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from agent.series.data import NAME, Labels, Match, Matcher, Storage
from agent.series.promql.binary import SetBinary
from agent.series.promql.calls import Application
from agent.series.promql.compiler import Compiler, parse
from agent.series.promql.errors import QueryError
from agent.series.promql.evaluation import INTERVAL_MS, LOOKBACK_MS, Evaluation, Session, refuse_duplicates
from agent.series.promql.functions import FUNCTIONS
from agent.series.promql.labels import without_name
from agent.series.promql.nodes import Kind, Moment, Node, Selector, Subquery, Window, stepped
from agent.series.promql.value import Element, Function, Notes, Range, Span, Value, Vector

_ALTERNATIVES = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\|[a-zA-Z_:][a-zA-Z0-9_:]*)*\Z")
_ABSENT = frozenset(("absent", "absent_over_time"))
MOST_BRANCHES = 64


class Selected(NamedTuple):
    """What one selector of a query needs.

    ``families``: the names it can choose, None if any name may match. ``window_ms``: how far before the moment of
    evaluation its oldest sample may lie (lookback or range, offsets, enclosing subqueries), with the default lookback.
    ``pinned``: it looks at a fixed moment (``@``), and the window says nothing.
    """

    matchers: tuple[Matcher, ...]
    families: frozenset[str] | None
    window_ms: int
    pinned: bool


class Query:
    """A compiled query. ``kind`` is the type of its value: scalar, string, vector or matrix."""

    def __init__(self, text: str, root: Node, *, delayed_name_removal: bool) -> None:
        self.text = text
        self.root = root
        self._delayed = delayed_name_removal
        self.selectors = _selectors(root)

    @property
    def kind(self) -> Kind:
        """The type of the value."""
        return self.root.kind

    def families(self) -> frozenset[str]:
        """The names of all families that the query reads; those of a selector that any name may match are not in it."""
        return frozenset().union(*(selected.families or () for selected in self.selectors))

    def branches(self) -> tuple[frozenset[str], ...]:
        """For each way in which the query can give a value, the families that must be there for it.

        ``a or b`` has two ways; ``a unless b`` needs ``a`` alone; ``absent(a)`` needs none.
        """
        return tuple(dict.fromkeys(_branches(self.root)))

    def instant(
        self,
        storage: Storage,
        at_ms: int,
        *,
        notes: Notes | None = None,
        session: Session | None = None,
        lookback_ms: int = LOOKBACK_MS,
        interval_ms: int = INTERVAL_MS,
    ) -> Value:
        """The value at one moment; raises QueryError. A session's storage and settings win over those given here.

        The value may be shared with other rules of the session: do not change it. A range holds windows of the
        storage's own lists, valid until the storage changes.
        """
        session = session or Session(storage, lookback_ms=lookback_ms, interval_ms=interval_ms)
        session.begin(at_ms)
        value = self.root.evaluate(Evaluation(session, at_ms, at_ms, at_ms, Notes() if notes is None else notes))
        if isinstance(value, Range):
            return Range(sorted(self._cleaned(value.spans), key=lambda span: span.labels), value.start_ms, value.end_ms)
        if self._delayed and isinstance(value, list):
            return _named(value)
        return value

    def range(
        self,
        storage: Storage,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        *,
        notes: Notes | None = None,
        lookback_ms: int = LOOKBACK_MS,
        interval_ms: int = INTERVAL_MS,
    ) -> Range:
        """The values at each step from start to end; series in the order of their labels. Raises QueryError."""
        if self.kind not in ("scalar", "vector"):
            shown = {"matrix": "range vector"}.get(self.kind, self.kind)
            raise QueryError(f'invalid expression type "{shown}" for range query, must be Scalar or instant Vector')
        if step_ms <= 0:
            raise QueryError("zero or negative query resolution step widths are not accepted. Try a positive integer")
        session = Session(storage, lookback_ms=lookback_ms, interval_ms=interval_ms)
        session.begin(start_ms)
        ev = Evaluation(session, start_ms, start_ms, end_ms, Notes() if notes is None else notes)
        spans = self._cleaned(stepped(self.root, ev, range(start_ms, end_ms + 1, step_ms)))
        return Range(sorted(spans, key=lambda span: span.labels), start_ms, end_ms)

    def _cleaned(self, spans: list[Span] | object) -> list[Span]:
        assert isinstance(spans, list)
        if not self._delayed:
            return spans
        merged: dict[Labels, list[Span]] = {}
        for span in spans:
            merged.setdefault(without_name(span.labels) if span.drop_name else span.labels, []).append(span)
        return [_merged(labels, parts) for labels, parts in merged.items()]


def _named(vector: Vector) -> Vector:
    """The end of a query with delayed name removal."""
    result = [Element(without_name(labels) if drop else labels, value) for labels, value, drop in vector]
    refuse_duplicates(result)
    return result


def _merged(labels: Labels, parts: list[Span]) -> Span:
    samples = [(part.times[index], part.values[index]) for part in parts for index in range(part.lo, part.hi)]
    if len(parts) > 1:
        samples.sort(key=lambda sample: sample[0])
        if len({time for time, _ in samples}) != len(samples):
            raise QueryError("vector cannot contain metrics with the same labelset")
    return Span(labels, [time for time, _ in samples], [value for _, value in samples], 0, len(samples))


def compile_query(
    text: str, *, functions: Mapping[str, Function] = FUNCTIONS, delayed_name_removal: bool = False
) -> Query:
    """Parse and compile; raises QueryError (syntax, types), UnsupportedError (what this evaluator does not have)."""
    tree, source = parse(text)
    root = Compiler(source, functions, delayed=delayed_name_removal).root(tree)
    return Query(text, root, delayed_name_removal=delayed_name_removal)


def _selectors(root: Node) -> tuple[Selected, ...]:
    found: list[Selected] = []
    _gather(root, 0, False, found)
    return tuple(found)


def _gather(node: Node, reach_ms: int, pinned: bool, found: list[Selected]) -> None:
    """``reach_ms``: how far back the subqueries around already look."""
    if isinstance(node, Subquery):
        inside, fixed = _reach(node.when.moment, node.when.offset_ms + node.range_ms, reach_ms, pinned)
        _gather(node.inner, inside, fixed, found)
    elif isinstance(node, Window):
        found.append(_selected(node.selector, node.range_ms, reach_ms, pinned))
    elif isinstance(node, Selector):
        found.append(_selected(node, LOOKBACK_MS, reach_ms, pinned))
    else:
        for child in node.children:
            _gather(child, reach_ms, pinned, found)


def _reach(moment: Moment, own_ms: int, around_ms: int, pinned: bool) -> tuple[int, bool]:
    """At an instant ``@ start()`` and ``@ end()`` are the moment of the query itself."""
    if moment is None:
        return around_ms + own_ms, pinned
    return own_ms, isinstance(moment, int)


def _selected(selector: Selector, own_ms: int, around_ms: int, pinned: bool) -> Selected:
    when = selector.when
    window_ms, fixed = _reach(when.moment, own_ms + when.offset_ms, around_ms, pinned)
    return Selected(tuple(selector.matchers), _families(selector), max(window_ms, 0), fixed)


def _families(selector: Selector) -> frozenset[str] | None:
    names: frozenset[str] | None = None
    for matcher in selector.matchers:
        if matcher.name != NAME:
            continue
        chosen: frozenset[str] | None = None
        if matcher.match is Match.EQUAL:
            chosen = frozenset((matcher.value,))
        elif matcher.match is Match.REGEX and _ALTERNATIVES.match(matcher.value):
            chosen = frozenset(matcher.value.split("|"))
        if chosen is not None:
            names = chosen if names is None else names & chosen
    return names


def _branches(node: Node) -> list[frozenset[str]]:
    if isinstance(node, Selector):
        return [frozenset((name,)) for name in sorted(_families(node) or ())] or [frozenset()]
    if isinstance(node, Application) and node.function.name in _ABSENT:
        return [frozenset()]
    if isinstance(node, SetBinary):
        left, right = (_branches(child) for child in node.children)
        if node.operator == "or":
            return left + right
        if node.operator == "unless":
            return left
    ways: list[frozenset[str]] = [frozenset()]
    for child in node.children:
        ways = [way | more for way in ways for more in _branches(child)][:MOST_BRANCHES]
    return ways
