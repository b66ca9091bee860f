"""Series: what a scrape brought, kept as long as a rule or a fault asks for it, and PromQL over it.

In: expositions of ``/metrics`` and the agent's own samples. Out: series in a ring store that behaves as a scrape does
(job, instance, ``up``, staleness markers), and the values of PromQL expressions as Prometheus 3 gives them.
"""

from agent.series.data import STALE, Labels, Match, Matcher, Series, Storage, is_stale, labels_of
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
from agent.series.selection import LOOKBACK_MS, Need, Selection
from agent.series.snapshot import Restored, capture_snapshot, restore_snapshot, write_snapshot
from agent.series.store import Store, Taken

__all__ = [
    "LOOKBACK_MS",
    "STALE",
    "BadLine",
    "Exposition",
    "ExpositionError",
    "Labels",
    "Match",
    "Matcher",
    "Metadata",
    "Need",
    "Parsed",
    "Reader",
    "Restored",
    "Selection",
    "Series",
    "Storage",
    "Store",
    "Taken",
    "capture_snapshot",
    "family_sums",
    "is_stale",
    "labels_of",
    "name_of",
    "parse",
    "restore_snapshot",
    "write_snapshot",
]
