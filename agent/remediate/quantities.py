"""Numbers as people read them, and the roundings that every family shares.

In: bytes, ratios, version texts. Out: text with units, or numbers rounded to the safe side. vLLM prints GiB
with two decimals and torch MiB below one GiB; the same is done here so that a person finds the number again
in the log.
"""

from __future__ import annotations

import math
import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

UTILIZATION_STEP = 100


def size(value: int) -> str:
    """``1.76 GiB``, ``887.12 MiB``: binary units, two decimals."""
    if abs(value) >= GIB:
        return f"{value / GIB:.2f} GiB"
    return f"{value / MIB:.2f} MiB" if abs(value) >= MIB else f"{value} bytes"


def floor_utilization(ratio: float) -> float:
    """Two decimals, rounded down: vLLM compares ratio x total with free memory, so up would not start.

    The small term keeps 0.29 at 0.29 (0.29 * 100 is 28.999… in binary).
    """
    return math.floor(ratio * UTILIZATION_STEP + 1e-9) / UTILIZATION_STEP


def version(text: str | None) -> tuple[int, int] | None:
    """``0.32.0+cpu`` -> (0, 32); None where it is not a version."""
    found = re.match(r"\s*v?(\d+)\.(\d+)", text or "")
    return (int(found.group(1)), int(found.group(2))) if found else None
