"""Keeps what a test or a benchmark measured: one JSON file a subject under bench/results.

In: a subject, the command that made it, raw figures. Out: the file. It never overwrites another subject's
figures. Written only where ``VLLM_AGENT_FIGURES`` names a folder (``make test-real`` and ``make bench`` set
it), so that a quick test run leaves the tree alone.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import psutil


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie (nearest rank, upwards: never flatters)."""
    ordered = sorted(values)
    rank = max(1, -(-int(share * 1000) * len(ordered) // 1000))
    return ordered[rank - 1]


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Count, median, p95 and maximum, beside which the raw values are kept."""
    return {
        "n": len(values),
        "p50": round(quantile(values, 0.5), 6),
        "p95": round(quantile(values, 0.95), 6),
        "max": round(max(values), 6),
    }


def machine() -> dict[str, object]:
    """The machine as a reader needs it to judge the figures."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def keep(subject: str, command: str, figures: dict[str, object]) -> Path | None:
    """Write ``subject``.json; None where figures are not kept in this run."""
    folder = os.environ.get("VLLM_AGENT_FIGURES")
    if not folder:
        return None
    target = Path(folder) / f"{subject}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "subject": subject,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(),
        "figures": figures,
    }
    target.write_text(json.dumps(record, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    return target
