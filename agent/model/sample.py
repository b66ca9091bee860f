"""One number of one series at one moment: what collectors bring and what the in-process store takes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """``name`` is whole (``vllm_agent_gpu_up``; a counter with its ``_total``), ``labels`` without ``__name__``.

    A counter's value is absolute: what was counted since its beginning. No time: a sample is of the moment at which it
    is read.
    """

    name: str
    labels: Mapping[str, str]
    value: float
