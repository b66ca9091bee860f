"""Functions on an instant vector as a whole: absent, scalar, vector, sort, sort_desc.

In: an instant vector or a scalar. Out: a vector in order, one element, or one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.series.data import NAME, Labels, labels_of
from agent.series.promql.functions.arguments import number, vector
from agent.series.promql.numbers import NAN
from agent.series.promql.value import Call, Element, Function, Vector


def absent_labels(matchers: Sequence[tuple[str, str, str]]) -> Labels:
    """The labels that a selector's matchers (name, operator, value) fix: those asked for once, and for equality."""
    fixed: dict[str, str] = {}
    seen: set[str] = set()
    for name, operator, value in matchers:
        if name == NAME:
            continue
        if operator == "=" and name not in seen:
            seen.add(name)
            fixed[name] = value
        else:
            fixed.pop(name, None)
    return labels_of(fixed)


def _absent(call: Call) -> Vector:
    return [] if vector(call) else [Element(absent_labels(call.matchers), 1.0)]


def _scalar(call: Call) -> float:
    elements = vector(call)
    return elements[0].value if len(elements) == 1 else NAN


def _vector(call: Call) -> Vector:
    return [Element((), number(call, 0))]


def _sort(call: Call) -> Vector:
    return sorted(vector(call), key=lambda element: (element.value != element.value, element.value))


def _sort_desc(call: Call) -> Vector:
    return sorted(vector(call), key=lambda element: (element.value != element.value, -element.value))


VECTORS: Mapping[str, Function] = {
    "absent": Function("absent", _absent),
    "scalar": Function("scalar", _scalar),
    "vector": Function("vector", _vector),
    "sort": Function("sort", _sort, drops_name=False),
    "sort_desc": Function("sort_desc", _sort_desc, drops_name=False),
}
