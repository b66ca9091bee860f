"""Every function of PromQL that Prometheus 3 offers without a feature flag, on floats.

In: a :class:`~agent.series.promql.value.Call`, its arguments evaluated. Out: a number or a vector. Functions neither
read the store nor know the query; the evaluator cuts the windows, drops names and refuses duplicates. Those that need
native histograms alone (histogram_count, histogram_sum, histogram_avg, histogram_stddev, histogram_stdvar) and those
that Prometheus keeps behind a flag are not here, so the evaluator refuses them when a query is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agent.series.promql.functions.dates import DATES
from agent.series.promql.functions.histograms import HISTOGRAMS
from agent.series.promql.functions.labels import LABELS
from agent.series.promql.functions.maths import MATHS
from agent.series.promql.functions.rates import RATES
from agent.series.promql.functions.vectors import VECTORS
from agent.series.promql.functions.windows import WINDOWS
from agent.series.promql.value import Function

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {**RATES, **WINDOWS, **HISTOGRAMS, **MATHS, **LABELS, **DATES, **VECTORS}
)

__all__ = ["FUNCTIONS"]
