"""Series: what a scrape brought, kept as long as a rule or a fault asks for it, and PromQL over it.

In: expositions of ``/metrics`` and the agent's own samples. Out: series in a ring store that behaves as a scrape does
(job, instance, ``up``, staleness markers), and the values of PromQL expressions as Prometheus 3 gives them.
"""

from agent.series.exposition import (
    BadLine,
    Exposition,
    ExpositionError,
    Metadata,
    Parsed,
    Reader,
    family_sums,
    name_of,
    parse,
)

__all__ = [
    "BadLine",
    "Exposition",
    "ExpositionError",
    "Metadata",
    "Parsed",
    "Reader",
    "family_sums",
    "name_of",
    "parse",
]
