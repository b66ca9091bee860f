"""The infos and warnings that functions add to a result, in Prometheus' words (util/annotations/annotations.go).

In: the call and what was seen. Out: a line in the call's notes, with the place of the argument in the query where it
is known. A note never changes a value.
"""

from __future__ import annotations

from agent.series.data import NAME, Labels
from agent.series.promql.labels import quoted
from agent.series.promql.numbers import shortest
from agent.series.promql.value import Call

COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


def name_of(labels: Labels) -> str:
    """The metric's name, empty if there is none."""
    for label, value in labels:
        if label == NAME:
            return value
    return ""


def info(call: Call, argument: int, text: str) -> None:
    """Add an info about one argument."""
    call.notes.info(f"PromQL info: {text}{_place(call, argument)}")


def warn(call: Call, argument: int, text: str) -> None:
    """Add a warning about one argument."""
    call.notes.warn(f"PromQL warning: {text}{_place(call, argument)}")


def possible_non_counter(call: Call, labels: Labels) -> None:
    """A rate of something whose name is not a counter's."""
    name = name_of(labels)
    if name and not name.endswith(COUNTER_SUFFIXES):
        suffixes = "/".join(COUNTER_SUFFIXES)
        info(call, 0, f"metric might not be a counter, name does not end in {suffixes}: {quoted(name)}")


def check_quantile(call: Call, argument: int, q: float) -> None:
    """A quantile that is none."""
    if not 0 <= q <= 1:
        warn(call, argument, f"quantile value should be between 0 and 1, got {shortest(q)}")


def bad_bucket_label(call: Call, argument: int, name: str, bound: str) -> None:
    """A bucket whose upper bound cannot be read."""
    text = f'bucket label "le" is missing or has a malformed value of {quoted(bound)}'
    warn(call, argument, text + _for_metric(name))


def forced_monotonicity(call: Call, argument: int, name: str) -> None:
    """Buckets that hold less than a smaller bucket holds."""
    manual = "https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile"
    text = f"input to histogram_quantile needed to be fixed for monotonicity (see {manual})"
    info(call, argument, text + _for_metric(name))


def _place(call: Call, argument: int) -> str:
    return f" {call.where[argument]}" if argument < len(call.where) else ""


def _for_metric(name: str) -> str:
    return f" for metric name {quoted(name)}" if name else ""
