"""What of a server's command line matters for judging its progress.

In: the argument vector. Out: a :class:`Shape`. Unknown flags are passed over; of a repeated flag the last counts, as
in vLLM.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import msgspec

ONE_SIDED = {"kv_producer": "prefill", "kv_consumer": "decode"}
SPREAD = ("--headless", "--data-parallel-external-lb", "--data-parallel-hybrid-lb", "--data-parallel-address")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """``whole``: every process of the engines runs on this host and is seen by the process probe; with several nodes
    or Ray an engine here may rest because another node computes. ``role``: prefill or decode of a disaggregated pair.
    ``chunked``: long prompts are computed in pieces, so decoding goes on beside them (default since vLLM 0.8).
    """

    whole: bool = True
    role: str | None = None
    chunked: bool = True


def shape_of(argv: Sequence[str]) -> Shape:
    """Read a command line of ``vllm serve``."""
    flags = _flags(argv)
    spread = any(name in flags for name in SPREAD) or "--data-parallel-size-local" in flags
    ray = "ray" in (flags.get("--distributed-executor-backend"), flags.get("--data-parallel-backend"))
    nodes = flags.get("--nnodes", "1") != "1"
    chunked = (
        "--no-enable-chunked-prefill" not in flags and flags.get("--enable-chunked-prefill", "").lower() != "false"
    )
    return Shape(whole=not (spread or ray or nodes), role=_role(flags.get("--kv-transfer-config", "")), chunked=chunked)


def _role(text: str) -> str | None:
    with contextlib.suppress(ValueError, AttributeError):
        return ONE_SIDED.get(str(json.loads(text).get("kv_role")))
    return None


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Both spellings, ``--name value`` and ``--name=value``; underscores read as dashes."""
    found = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name.replace("_", "-")] = value if equals else "" if following.startswith("--") else following
    return found
