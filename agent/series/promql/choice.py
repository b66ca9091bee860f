"""Which elements ``topk`` and ``bottomk`` keep among equals: those that Prometheus keeps.

Prometheus gathers the elements in a binary heap of Go's container/heap and sorts what is left. Which of several equal
elements survive follows from how that heap moves them, and a rule on ``topk(1, ...)`` fires for the one that does; so
the same moves are made here (Python's heapq makes others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.series.promql.value import Element, Vector

SMALL = 12

Less = Callable[[Element, Element], bool]


def chosen(elements: Sequence[Element], count: int, *, highest: bool) -> Vector:
    """At most ``count`` (1 or more) elements, the best first; NaN is the worst of all."""
    less = _lower if highest else _higher
    heap: Vector = []
    for element in elements:
        if len(heap) < count:
            heap.append(element)
            _up(heap, less)
        elif _better(element[1], heap[0][1], highest):
            heap[0] = element
            _down(heap, less)
    return _ordered(heap, less, highest)


def _lower(left: Element, right: Element) -> bool:
    return left[1] != left[1] or left[1] < right[1]


def _higher(left: Element, right: Element) -> bool:
    return left[1] != left[1] or left[1] > right[1]


def _better(value: float, than: float, highest: bool) -> bool:
    if than != than:
        return value == value
    return value > than if highest else value < than


def _up(heap: Vector, less: Less) -> None:
    child = len(heap) - 1
    while child > 0:
        parent = (child - 1) // 2
        if not less(heap[child], heap[parent]):
            return
        heap[child], heap[parent] = heap[parent], heap[child]
        child = parent


def _down(heap: Vector, less: Less) -> None:
    parent = 0
    while (child := 2 * parent + 1) < len(heap):
        if child + 1 < len(heap) and less(heap[child + 1], heap[child]):
            child += 1
        if not less(heap[child], heap[parent]):
            return
        heap[child], heap[parent] = heap[parent], heap[child]
        parent = child


def _ordered(heap: Vector, less: Less, highest: bool) -> Vector:
    """Go sorts few elements by insertion; of many, the order among equals is not told."""
    if len(heap) > SMALL:
        sign = -1.0 if highest else 1.0
        return sorted(heap, key=lambda element: (element[1] != element[1], sign * element[1]))
    for end in range(1, len(heap)):
        index = end
        while index > 0 and less(heap[index - 1], heap[index]):
            heap[index - 1], heap[index] = heap[index], heap[index - 1]
            index -= 1
    return heap
