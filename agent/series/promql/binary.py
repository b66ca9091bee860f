"""Binary operators: arithmetic, comparisons, set operators, between scalars and vectors.

Two vectors are matched by a signature: the labels of ``on``, or all but those of ``ignoring`` and the name. What each
label set's signature and result are does not change, so both are numbered and remembered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent.series.data import Labels
from agent.series.promql.errors import QueryError
from agent.series.promql.evaluation import Evaluation, refuse_duplicates
from agent.series.promql.labels import (
    MEMORY,
    RESERVED,
    Memo,
    Numbers,
    dropping,
    keeping,
    replaced,
    without_name,
    written,
)
from agent.series.promql.nodes import Node
from agent.series.promql.numbers import ARITHMETIC, COMPARISON
from agent.series.promql.value import Element, Value, Vector

Cardinality = Literal["one-to-one", "many-to-one", "one-to-many"]


class Matching:
    """How two vectors are matched: ``on`` or ``ignoring``, and which side may have many."""

    def __init__(
        self, names: Sequence[str], *, on: bool, cardinality: Cardinality = "one-to-one", include: Sequence[str] = ()
    ) -> None:
        self.on = on
        self.names = tuple(names)
        self.cardinality = cardinality
        self.include = tuple(include)
        self.signature = keeping(names) if on else dropping(names, RESERVED)


class ScalarBinary(Node):
    """Two scalars."""

    kind = "scalar"
    nameless = True

    def __init__(self, operator: str, left: Node, right: Node, key: str) -> None:
        self.children = (left, right)
        self.key = key
        self._compute = ARITHMETIC.get(operator) or COMPARISON[operator]

    def evaluate(self, ev: Evaluation) -> float:
        left, right = self.children
        return float(self._compute(left.scalar(ev), right.scalar(ev)))


class MixedBinary(Node):
    """A vector and a scalar. A comparison keeps the vector's value whichever side it stands on."""

    kind = "vector"

    def __init__(self, operator: str, left: Node, right: Node, key: str, *, to_bool: bool, delayed: bool) -> None:
        self.children = (left, right)
        self.key = key
        self._swap = left.kind == "scalar"
        self._vector, self._scalar = (right, left) if self._swap else (left, right)
        self._compute = ARITHMETIC.get(operator)
        self._compare = COMPARISON.get(operator)
        self._to_bool = to_bool
        self._drops = to_bool or self._compute is not None
        self._delayed = delayed
        self._named = Memo(without_name)
        self.nameless = self._vector.nameless or (self._drops and not delayed)

    def evaluate(self, ev: Evaluation) -> Vector:
        scalar = self._scalar.scalar(ev)
        vector = self._vector.vector(ev)
        if not self._drops:
            return self._filter(vector, scalar)
        result = self._renamed(self._computed(vector, scalar), vector)
        if not self._delayed and not self._vector.nameless:
            refuse_duplicates(result)
        return result

    def _filter(self, vector: Vector, scalar: float) -> Vector:
        compare = self._compare
        assert compare is not None
        if self._swap:
            return [element for element in vector if compare(scalar, element[1])]
        return [element for element in vector if compare(element[1], scalar)]

    def _computed(self, vector: Vector, scalar: float) -> list[float]:
        compute = self._compute or self._compare
        assert compute is not None
        if self._swap:
            return [float(compute(scalar, element[1])) for element in vector]
        return [float(compute(element[1], scalar)) for element in vector]

    def _renamed(self, values: list[float], vector: Vector) -> Vector:
        if self._delayed:
            return [Element(element[0], value, True) for value, element in zip(values, vector, strict=True)]
        named = self._named
        return [Element(named[element[0]], value) for value, element in zip(values, vector, strict=True)]


class SetBinary(Node):
    """``and``, ``or``, ``unless``: which elements stay; none is computed."""

    kind = "vector"

    def __init__(self, operator: str, left: Node, right: Node, matching: Matching, key: str) -> None:
        self.children = (left, right)
        self.key = key
        self.operator = operator
        self._signatures = Numbers(matching.signature)
        both = left.nameless and right.nameless and not matching.on
        self.nameless = both if operator == "or" else left.nameless

    def evaluate(self, ev: Evaluation) -> Vector:
        left, right = (child.vector(ev) for child in self.children)
        self._signatures.tidy()
        if self.operator == "or":
            return self._either(left, right)
        if not left or not right:
            return left if self.operator == "unless" else []
        signatures = self._signatures
        present = {signatures[element[0]] for element in right}
        if self.operator == "and":
            return [element for element in left if signatures[element[0]] in present]
        return [element for element in left if signatures[element[0]] not in present]

    def _either(self, left: Vector, right: Vector) -> Vector:
        if not left or not right:
            return left or right
        signatures = self._signatures
        present = {signatures[element[0]] for element in left}
        return left + [element for element in right if signatures[element[0]] not in present]


class VectorBinary(Node):
    """Arithmetic and comparisons of two vectors."""

    kind = "vector"

    def __init__(
        self, operator: str, left: Node, right: Node, matching: Matching, key: str, *, to_bool: bool, delayed: bool
    ) -> None:
        self.children = (left, right)
        self.key = key
        self._compute = ARITHMETIC.get(operator)
        self._compare = COMPARISON.get(operator)
        self._to_bool = to_bool
        self._delayed = delayed
        self._matching = matching
        self._swap = matching.cardinality == "one-to-many"
        self._one_to_one = matching.cardinality == "one-to-one"
        self._signatures = Numbers(matching.signature)
        self._results: dict[Labels | tuple[Labels, Labels], Labels] = {}
        many = right if self._swap else left
        self.nameless = self._one_to_one or self._compute is not None or to_bool or many.nameless

    def evaluate(self, ev: Evaluation) -> Value:
        left, right = (child.vector(ev) for child in self.children)
        if not left or not right:
            return []
        self._tidy()
        many, one = (right, left) if self._swap else (left, right)
        return self._one_to_ones(many, one) if self._one_to_one else self._many_to_ones(many, one)

    def _tidy(self) -> None:
        self._signatures.tidy()
        if len(self._results) >= MEMORY:
            self._results.clear()

    def _by_signature(self, one: Vector) -> dict[int, Element]:
        """The side of ones; raises QueryError when a signature is there twice."""
        signatures = self._signatures
        found = {signatures[element[0]]: element for element in one}
        if len(found) != len(one):
            self._refuse_many(one)
        return found

    def _refuse_many(self, one: Vector) -> None:
        seen: dict[int, Element] = {}
        for element in one:
            first = seen.setdefault(self._signatures[element.labels], element)
            if first is not element:
                pair = sorted((first.labels, element.labels))
                group = written(self._matching.signature(element.labels))
                side = "left" if self._swap else "right"
                raise QueryError(
                    f"found duplicate series for the match group {group} on the {side} hand-side of the operation: "
                    f"[{written(pair[0])}, {written(pair[1])}];many-to-many matching not allowed: "
                    "matching labels must be unique on one side"
                )

    def _one_to_ones(self, left: Vector, right: Vector) -> Vector:
        found = self._by_signature(right)
        signatures = self._signatures
        matched: set[int] = set()
        result: Vector = []
        for element in left:
            signature = signatures[element[0]]
            other = found.get(signature)
            if other is None:
                continue
            if signature in matched:
                raise QueryError(
                    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
                )
            matched.add(signature)
            value = self._value(element[1], other[1])
            if value is not None:
                result.append(Element(self._labels(element[0], other[0]), value, self._delayed and self._to_bool))
        return result

    def _many_to_ones(self, many: Vector, one: Vector) -> Vector:
        found = self._by_signature(one)
        signatures = self._signatures
        inserted: set[tuple[int, Labels]] = set()
        result: Vector = []
        for element in many:
            signature = signatures[element[0]]
            other = found.get(signature)
            if other is None:
                continue
            labels = self._labels(element[0], other[0])
            if (signature, labels) in inserted:
                raise QueryError("multiple matches for labels: grouping labels must ensure unique matches")
            inserted.add((signature, labels))
            first, second = (other[1], element[1]) if self._swap else (element[1], other[1])
            value = self._value(first, second)
            if value is not None:
                result.append(Element(labels, value, self._delayed and self._to_bool))
        return result

    def _value(self, left: float, right: float) -> float | None:
        """None: the comparison filters it."""
        if self._compute is not None:
            return self._compute(left, right)
        assert self._compare is not None
        holds = self._compare(left, right)
        if self._to_bool:
            return float(holds)
        return left if holds else None

    def _labels(self, many: Labels, one: Labels) -> Labels:
        key = (many, one) if self._matching.include else many
        known = self._results.get(key)
        if known is None:
            known = self._results[key] = self._compose(many, one)
        return known

    def _compose(self, many: Labels, one: Labels) -> Labels:
        matching = self._matching
        result = many
        if self._compute is not None:
            result = without_name(result)
        if self._one_to_one:
            names = frozenset(matching.names)
            result = tuple(pair for pair in result if (pair[0] in names) is matching.on)
        if matching.include:
            values = dict(one)
            result = replaced(result, {name: values.get(name, "") for name in matching.include})
        return without_name(result) if self._to_bool and not self._delayed else result
