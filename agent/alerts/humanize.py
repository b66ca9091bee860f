"""Numbers as Go and Prometheus' templates print them.

In: floats. Out: the same characters that Prometheus puts into an annotation (prometheus/util/strutil and template.go,
Go's strconv), so that a text told by the agent equals the one that Alertmanager would have got. Never here: parsing.
"""

from __future__ import annotations

import math

_LARGE = ("k", "M", "G", "T", "P", "E", "Z", "Y")
_BINARY = ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")


def plain(value: float) -> str:
    """Go's ``%v`` of a float64: the shortest digits, an exponent below 1e-4 and from 1e6 on."""
    if special := _special(value):
        return special
    digits = repr(value)
    mantissa, _, exponent = digits.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if fraction == "0":
        fraction = ""
    point = len(whole) + int(exponent or 0)
    figures = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(figures)
    figures = figures.rstrip("0")
    if not figures:
        return f"{sign}0"
    return sign + _place(figures, point)


def _place(figures: str, point: int) -> str:
    """``figures`` with the decimal point after ``point`` of them, or in scientific form."""
    exponent = point - 1
    if exponent < -4 or exponent >= 6:
        rest = f".{figures[1:]}" if len(figures) > 1 else ""
        return f"{figures[0]}{rest}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if point <= 0:
        return f"0.{'0' * -point}{figures}"
    if point >= len(figures):
        return figures + "0" * (point - len(figures))
    return f"{figures[:point]}.{figures[point:]}"


def fixed(value: float, digits: int) -> str:
    """Go's ``%.<digits>f``."""
    return _special(value) or f"{value:.{digits}f}"


def humanize(value: float) -> str:
    """Four significant digits with a metric prefix: ``1.235k``, ``123m``."""
    if value == 0 or not math.isfinite(value):
        return _four(value)
    if abs(value) >= 1:
        return "".join(_scaled(value, 1000.0, _LARGE))
    return "".join(_small(value))


def humanize1024(value: float) -> str:
    """Four significant digits with a binary prefix: ``1.5Gi``."""
    if abs(value) <= 1 or not math.isfinite(value):
        return _four(value)
    return "".join(_scaled(value, 1024.0, _BINARY))


def humanize_percentage(value: float) -> str:
    """A ratio as a percentage of four significant digits: ``12.35%``."""
    return f"{_four(value * 100)}%"


def humanize_duration(value: float) -> str:
    """Seconds as ``1d 2h 3m 4s``, or with a metric prefix below one second."""
    if not math.isfinite(value):
        return _four(value)
    if value == 0:
        return f"{_four(value)}s"
    if abs(value) < 1:
        digits, prefix = _small(value)
        return f"{digits}{prefix}s"
    sign = "-" if value < 0 else ""
    value = abs(value)
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    if minutes:
        return f"{sign}{minutes}m {seconds}s"
    return f"{sign}{_four(value)}s"


def _special(value: float) -> str:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return ""


def _four(value: float) -> str:
    return _special(value) or f"{value:.4g}"


def _scaled(value: float, step: float, prefixes: tuple[str, ...]) -> tuple[str, str]:
    chosen = ""
    for prefix in prefixes:
        if abs(value) < step:
            break
        chosen = prefix
        value /= step
    return _four(value), chosen


def _small(value: float) -> tuple[str, str]:
    chosen = ""
    for prefix in _SMALL:
        if abs(value) >= 1:
            break
        chosen = prefix
        value *= 1000
    return _four(value), chosen
