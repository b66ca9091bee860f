"""Mathematics on each element of an instant vector: rounding, powers, logarithms, trigonometry, clamps; and pi.

In: an instant vector, with bounds or a step as scalars. Out: the same elements with new values. Outside of a function's
domain the value is NaN or an infinity, as IEEE 754 has it; nothing is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from agent.series.promql.functions.arguments import number, vector
from agent.series.promql.functions.numbers import ceiling, floor, larger, smaller, total
from agent.series.promql.numbers import INF, divide
from agent.series.promql.value import Call, Element, Function, Vector


def _logarithm(compute: Callable[[float], float]) -> Callable[[float], float]:
    return total(lambda value: -INF if value == 0 else compute(value))


def _hyperbolic_arctangent(value: float) -> float:
    return math.copysign(INF, value) if abs(value) == 1 else math.atanh(value)


def _sign(value: float) -> float:
    if value < 0:
        return -1.0
    return 1.0 if value > 0 else value


_POINTWISE: Mapping[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": ceiling,
    "floor": floor,
    "exp": total(math.exp),
    "sqrt": total(math.sqrt),
    "ln": _logarithm(math.log),
    "log2": _logarithm(math.log2),
    "log10": _logarithm(math.log10),
    "sgn": _sign,
    "sin": total(math.sin),
    "cos": total(math.cos),
    "tan": total(math.tan),
    "asin": total(math.asin),
    "acos": total(math.acos),
    "atan": math.atan,
    "sinh": total(math.sinh),
    "cosh": total(math.cosh),
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": total(math.acosh),
    "atanh": total(_hyperbolic_arctangent),
    "rad": lambda value: value * math.pi / 180,
    "deg": lambda value: value * 180 / math.pi,
}


def _each(compute: Callable[[float], float]) -> Callable[[Call], Vector]:
    def evaluate(call: Call) -> Vector:
        return [Element(element.labels, compute(element.value), element.drop_name) for element in vector(call)]

    return evaluate


def _round(call: Call) -> Vector:
    step = number(call, 1) if len(call.arguments) > 1 else 1.0
    # Upside down, for fewer rounding errors: 1 / 0.1 is exactly 10.
    inverse = divide(1.0, step)
    return _each(lambda value: divide(floor(value * inverse + 0.5), inverse))(call)


def _clamp(call: Call) -> Vector:
    return _within(call, number(call, 1), number(call, 2))


def _clamp_min(call: Call) -> Vector:
    return _within(call, number(call, 1), INF)


def _clamp_max(call: Call) -> Vector:
    return _within(call, -INF, number(call, 1))


def _within(call: Call, least: float, most: float) -> Vector:
    if most < least:
        return []
    return _each(lambda value: larger(least, smaller(most, value)))(call)


def _pi(call: Call) -> float:
    return math.pi


MATHS: Mapping[str, Function] = {
    **{name: Function(name, _each(compute)) for name, compute in _POINTWISE.items()},
    "round": Function("round", _round),
    "clamp": Function("clamp", _clamp),
    "clamp_min": Function("clamp_min", _clamp_min),
    "clamp_max": Function("clamp_max", _clamp_max),
    "pi": Function("pi", _pi),
}
