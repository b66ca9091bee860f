"""The stand-in of a vLLM server: looks and behaves to the agent like ``vllm serve``, with faults on demand.

In comes vLLM's command line with ``--fault`` and ``--sim-*`` flags; out come a server on a port, its metrics,
its log and its exit status. It serves demos and tests without a GPU and without vLLM, and it holds the same
memory arithmetic as the real thing, so that a repair shown on it is a repair by numbers. It is never part of
a deployment.

Public face: `main` (``agent sim``), `FAULTS` (the names and what they take), `write_stub` (an ``nvidia-smi``
for PATH that answers from the stand-in's card). The rest of this package is private.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from agent.errors import UsageError
from agent.sim.faults import FAULTS, Fault
from agent.sim.flags import SIM_FLAGS, VERSIONS, FlagError, non_default, scan
from agent.sim.limits import ValueFailure
from agent.sim.options import parse
from agent.sim.server import fail_usage, fail_value, serve
from agent.sim.smi import write_stub

__all__ = ["FAULTS", "Fault", "main", "write_stub"]


def main(argv: Sequence[str]) -> int:
    """Run ``agent sim`` with the words after it; returns the exit status of the server.

    0 when the engine died or the server was asked to stop, 1 when it could not start, 2 for a flag that vLLM
    does not know (as vLLM 0.32 does in all three), 64 for a mistake in the stand-in's own flags.
    """
    if any(word in ("-h", "--help") for word in argv):
        sys.stdout.write(_help())
        return 0
    try:
        settings = parse(argv)
    except FlagError as error:
        return fail_usage(VERSIONS[0], str(error))
    except ValueFailure as error:
        words, found = scan([word for word in argv if word != "serve"])
        shown = non_default(words, found)
        return fail_value(shown, str(shown.get("model", "/models/llama-8b")), VERSIONS[0], str(error))
    except UsageError as error:
        sys.stderr.write(f"agent sim: {error}\n")
        return error.exit_code
    return serve(settings, os.environ)


def _help() -> str:
    """The stand-in's own flags and faults; vLLM's flags are those of ``vllm serve``."""
    lines = ["usage: agent sim [MODEL] [flags of vllm serve] [--fault NAME[=ARG]]… [--sim-…]", "", "flags:"]
    lines += [
        f"  {name:28} {text}{f' (default {default})' if default else ''}" for name, (default, text) in SIM_FLAGS.items()
    ]
    lines += ["", "faults:", *(f"  {example}" for _, _, example in FAULTS.values()), ""]
    return "\n".join(lines)
