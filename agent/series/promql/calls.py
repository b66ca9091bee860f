"""Calls of functions: what they get, and what is done to names afterwards.

The functions themselves compute values alone (:mod:`agent.series.promql.value` is the contract). Here their arguments
are evaluated, names are taken off what is no longer that metric, and duplicate label sets are refused.
"""

from __future__ import annotations

from agent.series.promql.evaluation import Evaluation, refuse_duplicates
from agent.series.promql.labels import Memo, without_name
from agent.series.promql.nodes import Kind, Node, Selector, Window
from agent.series.promql.value import Call, Element, Function, Value, Vector

WRITES_LABELS = frozenset(("label_replace", "label_join"))


class Application(Node):
    """One call. ``own_time``: it is ``timestamp`` of a plain selector, and gets the samples' own times."""

    def __init__(
        self,
        function: Function,
        arguments: tuple[Node, ...],
        kind: Kind,
        key: str,
        *,
        texts: tuple[str, ...],
        where: tuple[str, ...],
        delayed: bool,
        own_time: bool = False,
    ) -> None:
        self.function = function
        self.children = arguments
        self.kind = kind
        self.key = key
        self._texts = texts
        self._where = where
        self._delayed = delayed
        self._named = Memo(without_name)
        self._matchers = _matchers(arguments)
        self._over_range = any(argument.kind == "matrix" for argument in arguments)
        vectors = [argument for argument in arguments if argument.kind in ("vector", "matrix")]
        distinct = function.name not in WRITES_LABELS and all(argument.nameless for argument in vectors)
        self.nameless = distinct
        self._check = not distinct and (function.drops_name or function.name in WRITES_LABELS)
        self._own_time = own_time

    def evaluate(self, ev: Evaluation) -> Value:
        return ev.shared(self.key, self._apply) if self._over_range and ev.found is not None else self._apply(ev)

    def _apply(self, ev: Evaluation) -> Value:
        function = self.function
        times: list[int] | None = None
        if self._own_time:
            selector = self.children[0]
            assert isinstance(selector, Selector)
            samples = list(selector.samples(ev))
            times = [time for _, time, _ in samples]
            values: tuple[Value, ...] = ([Element(labels, value) for labels, _, value in samples],)
        else:
            values = tuple([argument.evaluate(ev) for argument in self.children])
        call = Call(values, ev.at_ms, ev.notes, self._texts, self._matchers, self._where, times, self._delayed)
        result = function.evaluate(call)
        if not isinstance(result, list):
            return result
        return self._finish(ev, result)

    def _finish(self, ev: Evaluation, result: Vector) -> Vector:
        if self._delayed:
            if self.function.name in WRITES_LABELS:
                refuse_duplicates(result)
            if self.function.drops_name:
                result = [Element(labels, value, True) for labels, value, _ in result]
            return result
        sources = result
        if self.function.drops_name:
            named = self._named
            result = [Element(named[labels], value) for labels, value, _ in result]
        if self._check:
            refuse_duplicates(result)
            if self._over_range and ev.owners is not None:
                ev.own(id(self), result, [element.labels for element in sources])
        return result


def _matchers(arguments: tuple[Node, ...]) -> tuple[tuple[str, str, str], ...]:
    """Those of the first argument where it is a selector or a range of one."""
    first = arguments[0] if arguments else None
    if isinstance(first, Window):
        first = first.selector
    if not isinstance(first, Selector):
        return ()
    return tuple((matcher.name, matcher.match.value, matcher.value) for matcher in first.matchers)
