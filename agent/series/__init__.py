"""Series: what a scrape brought, kept as long as a rule or a fault asks for it, and PromQL over it.

In: expositions of ``/metrics`` and the agent's own samples. Out: series in a ring store that behaves as a scrape does
(job, instance, ``up``, staleness markers), and the values of PromQL expressions as Prometheus 3 gives them.
"""

from agent.series.contract import Contract, Family, Presence, PresenceKind, contract_for, is_multiprocess, version_range
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
from agent.series.own import OWN_PREFIX, OwnMetric, own_metrics
from agent.series.promql import (
    Element,
    Notes,
    Query,
    QueryError,
    Range,
    Selected,
    Session,
    Span,
    UnsupportedError,
    Value,
    Vector,
    compile_query,
)
from agent.series.selection import LOOKBACK_MS, Need, Selection
from agent.series.snapshot import Image, Restored, capture_snapshot, restore_snapshot, write_snapshot
from agent.series.store import Store, Taken

__all__ = [
    "LOOKBACK_MS",
    "OWN_PREFIX",
    "STALE",
    "BadLine",
    "Contract",
    "Element",
    "Exposition",
    "ExpositionError",
    "Family",
    "Image",
    "Labels",
    "Match",
    "Matcher",
    "Metadata",
    "Need",
    "Notes",
    "OwnMetric",
    "Parsed",
    "Presence",
    "PresenceKind",
    "Query",
    "QueryError",
    "Range",
    "Reader",
    "Restored",
    "Selected",
    "Selection",
    "Series",
    "Session",
    "Span",
    "Storage",
    "Store",
    "Taken",
    "UnsupportedError",
    "Value",
    "Vector",
    "capture_snapshot",
    "compile_query",
    "contract_for",
    "family_sums",
    "is_multiprocess",
    "is_stale",
    "labels_of",
    "name_of",
    "own_metrics",
    "parse",
    "restore_snapshot",
    "version_range",
    "write_snapshot",
]
