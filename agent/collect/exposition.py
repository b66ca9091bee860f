"""Family sums from a Prometheus text exposition.

In: the bytes of one ``/metrics`` answer. Out: for each wanted family the sum over its series (all engines, all
models), plus which families were there at all. It keeps no history and judges nothing. One pass over lines with
no regular expression: an answer of 60 KB costs well under a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec


class Families(msgspec.Struct, frozen=True, kw_only=True):
    """``sums`` maps family to the sum of its samples (NaN samples left out); ``vllm`` tells if any vllm:* was seen."""

    sums: dict[str, float]
    vllm: bool


def family_sums(body: bytes, wanted: Collection[str]) -> Families:
    """Sum the wanted families of an exposition; malformed lines are passed over.

    Raises ValueError when the body is no exposition at all (HTML, JSON, binary).
    """
    text = body.decode("utf-8", "replace")
    if not _looks_like_exposition(text):
        raise ValueError("not a Prometheus text exposition")
    sums: dict[str, float] = {}
    vllm = False
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        name = line[: _name_end(line)]
        vllm = vllm or name.startswith("vllm:")
        if name not in wanted:
            continue
        value = _value(line)
        if value is not None:
            sums[name] = sums.get(name, 0.0) + value
    return Families(sums=sums, vllm=vllm)


def _looks_like_exposition(text: str) -> bool:
    head = text.lstrip()[:1]
    return text.strip() == "" or head == "#" or (head.isalpha() or head in "_:")


def _name_end(line: str) -> int:
    brace, space = line.find("{"), line.find(" ")
    if brace < 0:
        return space if space >= 0 else len(line)
    return brace if space < 0 else min(brace, space)


def _value(line: str) -> float | None:
    """The sample's value: the field after the labels (a timestamp may follow)."""
    rest = line[line.rfind("}") + 1 :] if "}" in line else line.partition(" ")[2]
    fields = rest.split()
    try:
        value = float(fields[0])
    except (IndexError, ValueError):
        return None
    return None if math.isnan(value) else value
