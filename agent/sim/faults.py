"""Faults that the stand-in can be given, parsed once into typed values.

In come the strings of ``--fault NAME[=ARG]`` and of ``POST /sim/fault``; out go frozen `Fault` values that
the start-up check and the engine read. Nothing here keeps count of anything: whether a fault strikes depends
only on the step at hand, the command line and the environment, so that a repair which changes those is really
a repair.

| name | argument | what it does |
|---|---|---|
| exit0 | seconds | the engine dies that long after it is ready; without a number at the next request |
| oom-above | N or Nt | a step with more than N running sequences (or N tokens) runs out of memory |
| oom-fragmented | N or Nt | the same with the memory reserved in pieces; expandable segments cure it |
| oom-neighbour | GiB[@start] | another process takes that much under the first load, or before the start |
| hang | seconds | the engine stops stepping; for ever without a number |
| ptxas | - | the start fails until a TRITON_PTXAS variable names a new enough assembler |
| kv-too-small | tokens | the start fails until --max-model-len fits into that many tokens |
| slow-load | seconds | loading the weights takes that long (10 without a number) |
| slow-answers | seconds | every engine step takes that much longer (0.5 without a number) |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent.errors import UsageError

#: Name -> (pattern of the argument, whether it must be given, an example for the error message).
FAULTS: dict[str, tuple[str, bool, str]] = {
    "exit0": (r"\d+(\.\d+)?", False, "exit0=5"),
    "oom-above": (r"\d+t?", True, "oom-above=8"),
    "oom-fragmented": (r"\d+t?", True, "oom-fragmented=8"),
    "oom-neighbour": (r"\d+(\.\d+)?(@start)?", False, "oom-neighbour=20"),
    "hang": (r"\d+(\.\d+)?", False, "hang=30"),
    "ptxas": (r"", False, "ptxas"),
    "kv-too-small": (r"\d+", False, "kv-too-small=4096"),
    "slow-load": (r"\d+(\.\d+)?", False, "slow-load=10"),
    "slow-answers": (r"\d+(\.\d+)?", False, "slow-answers=0.5"),
}
#: These act while the server starts; given at run time they would never strike.
START_ONLY = frozenset({"ptxas", "kv-too-small", "slow-load"})


@dataclass(frozen=True)
class Fault:
    """One fault; ``arg`` is what stood behind the equals sign, "" where nothing did."""

    name: str
    arg: str = ""

    def number(self, default: float) -> float:
        """The argument's number (seconds, GiB or tokens), or ``default`` where none was given."""
        found = re.match(r"\d+(\.\d+)?", self.arg)
        return float(found.group()) if found else default

    @property
    def in_tokens(self) -> bool:
        """Whether an OOM limit counts tokens of a step instead of running sequences."""
        return self.arg.endswith("t")


def parse_fault(text: str) -> Fault:
    """``NAME`` or ``NAME=ARG`` to a `Fault`; raises `UsageError` naming the known faults."""
    name, _, arg = text.partition("=")
    if name not in FAULTS:
        known = ", ".join(FAULTS)
        raise UsageError(f"unknown fault {name!r}", where="--fault", remedy=f"Use one of: {known}.")
    pattern, needed, example = FAULTS[name]
    if (arg or needed) and not re.fullmatch(pattern, arg):
        raise UsageError(
            f"fault {name}: argument {arg!r} is not understood", where="--fault", remedy=f"Write {example}."
        )
    return Fault(name, arg)


def find(faults: Iterable[Fault], name: str) -> Fault | None:
    """The last fault of that name: as with vLLM's flags, the last occurrence wins."""
    found = None
    for fault in faults:
        if fault.name == name:
            found = fault
    return found
