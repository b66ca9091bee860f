"""Arithmetic as Go's float64 has it: no exception, infinities and NaN instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

NAN = math.nan
INF = math.inf


def divide(left: float, right: float) -> float:
    """``/``: by zero is an infinity, zero by zero NaN."""
    if right != 0:
        return left / right
    if left == 0 or left != left:
        return NAN
    return math.copysign(INF, left) * math.copysign(1.0, right)


def modulo(left: float, right: float) -> float:
    """``%``: the sign of the dividend; by zero or of an infinity it is NaN."""
    if right == 0 or left in (INF, -INF):
        return NAN
    return math.fmod(left, right)


def power(left: float, right: float) -> float:
    """``^``: C's pow, with overflow as an infinity and a negative base with a broken exponent as NaN."""
    try:
        return math.pow(left, right)
    except OverflowError:
        return -INF if left < 0 and math.fmod(right, 2) != 0 else INF
    except ValueError:
        if left != 0:
            return NAN
        odd = right == math.floor(right) and math.fmod(right, 2) != 0
        return math.copysign(INF, left) if odd else INF


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": divide,
    "%": modulo,
    "^": power,
    "atan2": math.atan2,
}
COMPARISON: dict[str, Callable[[float, float], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
}


def compensated(increment: float, total: float, error: float) -> tuple[float, float]:
    """One step of Kahan's sum in Neumaier's form: the new total and what it lacks."""
    result = total + increment
    if result - result != 0.0:  # an infinity, or NaN, which no correction changes
        return result, 0.0
    if abs(total) >= abs(increment):
        return result, error + ((total - result) + increment)
    return result, error + ((increment - result) + total)


def decimal(value: float) -> str:
    """Go's shortest decimal form without an exponent, as ``count_values`` writes values."""
    if value != value:
        return "NaN"
    if value in (INF, -INF):
        return "+Inf" if value > 0 else "-Inf"
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


def shortest(value: float) -> str:
    """Go's %g and %v of a float64: the shortest digits, with an exponent below 1e-4 and from 1e6 on."""
    if value != value or value in (INF, -INF) or value == 0 or 1e-4 <= abs(value) < 1e6:
        return decimal(value)
    digits, _, exponent = f"{Decimal(repr(value)):e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}e{int(exponent):+03d}"
