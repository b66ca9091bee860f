"""Time of a query and parts of dates, in UTC: time, timestamp, year, month, day_of_month, hour and their kin.

In: seconds since 1970 as values, or no argument for the query's own time. Out: the part of the date. The calendar is
the Gregorian one for all years, without leap seconds, and holds for every float: NaN and numbers too large for 64 bits
give the date that Prometheus gives on x86-64, in December of the year 292277026596.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent.series.promql.functions.arguments import vector
from agent.series.promql.value import Call, Element, Function, Vector

DAY = 86400
# A float that is no 64-bit integer becomes the smallest one, from which Go's calendar runs over to this second.
_BEYOND = 2**63
_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


class _Date(NamedTuple):
    year: int
    month: int
    day: int
    leap: bool
    days: int
    second: int


def _date(seconds: int) -> _Date:
    days, second = divmod(seconds, DAY)
    # Howard Hinnant's days-to-civil: eras of 400 years, each beginning on 1 March, so that a leap day is a year's last.
    era, day = divmod(days + 719468, 146097)
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    shifted = (5 * day + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year += 400 * era + (month <= 2)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return _Date(year, month, day - (153 * shifted + 2) // 5 + 1, leap, days, second)


def _whole_seconds(value: float) -> int:
    return int(value) if -(2.0**63) <= value < 2.0**63 else _BEYOND


def _day_of_year(date: _Date) -> int:
    return _BEFORE[date.month - 1] + date.day + (date.leap and date.month > 2)


def _days_in_month(date: _Date) -> int:
    if date.month == 2:
        return 29 if date.leap else 28
    return 30 if date.month in (4, 6, 9, 11) else 31


_PARTS: Mapping[str, Callable[[_Date], int]] = {
    "year": lambda date: date.year,
    "month": lambda date: date.month,
    "day_of_month": lambda date: date.day,
    "day_of_week": lambda date: (date.days + 4) % 7,
    "day_of_year": _day_of_year,
    "days_in_month": _days_in_month,
    "hour": lambda date: date.second // 3600,
    "minute": lambda date: date.second % 3600 // 60,
}


def _part(compute: Callable[[_Date], int]) -> Callable[[Call], Vector]:
    def evaluate(call: Call) -> Vector:
        if not call.arguments:
            return [Element((), float(compute(_date(int(call.at_ms / 1000)))))]
        return [
            Element(element.labels, float(compute(_date(_whole_seconds(element.value)))), element.drop_name)
            for element in vector(call)
        ]

    return evaluate


def _time(call: Call) -> float:
    return call.at_ms / 1000


def _timestamp(call: Call) -> Vector:
    elements = vector(call)
    times = call.times if call.times is not None else [call.at_ms] * len(elements)
    return [
        Element(element.labels, time / 1000, element.drop_name) for element, time in zip(elements, times, strict=True)
    ]


DATES: Mapping[str, Function] = {
    **{name: Function(name, _part(compute)) for name, compute in _PARTS.items()},
    "time": Function("time", _time),
    "timestamp": Function("timestamp", _timestamp),
}
