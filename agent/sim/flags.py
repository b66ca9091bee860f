"""vLLM's command line as argparse would read it, without argparse and without vLLM.

In comes argv; out go positional words and (flag, values) in order, or `FlagError` in argparse's words. The
list of vLLM's flags is data (``texts/flags.txt``, of vLLM 0.32.0), because importing vLLM's own parser
takes seconds and gigabytes. As in vLLM, dashes and underscores are the same, a unique prefix of a flag will
do, and the last occurrence of a flag wins; that is how flags that are appended to a command take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from agent.errors import UsageError

TEXTS = Path(__file__).parent / "texts"
VERSIONS = ("0.32.0", "0.25.1")
#: The stand-in's own flags: name -> (default, what it is).
SIM_FLAGS: dict[str, tuple[str, str]] = {
    "--fault": ("", "NAME[=ARG], may be given several times"),
    "--sim-start-seconds": ("0.1", "how long the start takes"),
    "--sim-step-seconds": ("0.01", "how long one engine step takes"),
    "--sim-gpu-gib": ("80", "the card's total memory"),
    "--sim-weights-gib": ("16", "the model's weights"),
    "--sim-kv-bytes-per-token": ("131072", "KV cache of one token; 128 KiB is an 8B Llama"),
    "--sim-model-max-len": ("131072", "the model's own context length"),
    "--sim-vllm-version": (
        VERSIONS[0],
        "metrics and log prefixes of which version: " + " or ".join(VERSIONS),
    ),
    "--sim-hang-notice": ("60", "seconds of hanging before the shared-memory notice"),
    "--sim-stats-seconds": ("10", "interval of the throughput line"),
    "--sim-smi": ("", "state file for the stand-in of nvidia-smi (default $VLLM_SIM_SMI)"),
    "--sim-arch": ("90", "compute capability times ten"),
    "--sim-orphan-seconds": ("0", "how long the engine outlives a killed API server"),
}


class FlagError(Exception):
    """argparse would refuse: ``vllm: error: …``, exit 2."""


@cache
def known_flags() -> dict[str, tuple[str, str]]:
    """Every spelling of every flag -> (its first spelling, bool | one | maybe | many)."""
    flags = {name: (name, "one") for name in SIM_FLAGS}
    for line in (TEXTS / "flags.txt").read_text().splitlines():
        kind, *names = line.split()
        for name in names:
            flags[name] = (name if name.startswith("--no-") else names[0], kind)
    return flags


def _resolve(token: str) -> tuple[str, str] | None:
    """A flag's first spelling and kind; None for an unknown one; `FlagError` for an ambiguous prefix."""
    flags = known_flags()
    name = token.split(".")[0] if token.startswith("--") else token
    if name in flags:
        return flags[name]
    if not name.startswith("--"):
        return None
    hits = [flag for flag in flags if flag.startswith(name)]
    if len(hits) > 1:
        raise FlagError(f"ambiguous option: {name} could match {', '.join(hits)}")
    return flags[hits[0]] if hits else None


def scan(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """argv -> positional words, and (flag, values) in order; raises `FlagError` as argparse would."""
    words: list[str] = []
    found: list[tuple[str, list[str]]] = []
    unknown: list[str] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-") or token == "-":
            words.append(token)
            continue
        name, equals, value = token.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        flag = _resolve(name)
        if flag is None and not name.startswith("--") and name[:2] in known_flags():
            flag, equals, value = known_flags()[name[:2]], "=", name[2:]  # -O3
        if flag is None:
            unknown.append(token)
            if rest and not rest[0].startswith("-"):
                unknown.append(rest.pop(0))
            continue
        found.append((flag[0], _values(flag[0], flag[1], [value] if equals else None, rest)))
    if unknown or len(words) > 1:
        raise FlagError("unrecognized arguments: " + " ".join([*unknown, *words[1:]]))
    return words, found


def _values(name: str, kind: str, given: list[str] | None, rest: list[str]) -> list[str]:
    """The values of one flag, taken off ``rest``."""
    if given is not None:
        return given
    if kind == "bool":
        return []
    values: list[str] = []
    while rest and not rest[0].startswith("--") and (kind == "many" or not values):
        values.append(rest.pop(0))
    if not values and kind != "maybe":
        raise FlagError(f"argument {name}: expected {'at least ' if kind == 'many' else ''}one argument")
    return values


class Flags:
    """The flags that were given, with typed access; the last occurrence wins."""

    def __init__(self, found: list[tuple[str, list[str]]]) -> None:
        self.found = found
        self.last = dict(found)

    def text(self, name: str, default: str) -> str:
        values = self.last.get(name)
        return values[0] if values else default

    def number(self, name: str, kind: Callable[[str], float], default: float | None) -> float | None:
        """A number, or `FlagError` with argparse's text for one that does not parse."""
        values = self.last.get(name)
        if not values:
            return default
        try:
            return kind(values[0])
        except ValueError:
            raise FlagError(f"argument {name}: invalid {kind.__name__.strip('_')} value: {values[0]!r}") from None

    def integer(self, name: str, default: int) -> int:
        value = self.number(name, human_readable_int, default)
        return default if value is None else int(value)

    def maybe_integer(self, name: str) -> int | None:
        value = self.number(name, human_readable_int, None)
        return None if value is None else int(value)

    def switch(self, name: str, default: bool) -> bool:
        """A flag pair ``--x`` / ``--no-x``: whichever stands last."""
        value = default
        for flag, _ in self.found:
            if flag in (name, "--no-" + name[2:]):
                value = flag == name
        return value

    def sim(self, name: str) -> float:
        """One of the stand-in's own numbers; `UsageError` where it is none."""
        text = self.text(name, SIM_FLAGS[name][0])
        try:
            return float(text)
        except ValueError:
            remedy = f"Give a number: {SIM_FLAGS[name][1]}."
            raise UsageError(f"{name}: {text!r} is no number", where="agent sim", remedy=remedy) from None


def human_readable_int(text: str) -> int:
    """As vLLM's type of that name: 1k = 1000, 1K = 1024, up to T, decimals allowed for powers of ten."""
    scale = {
        "k": 10**3,
        "m": 10**6,
        "g": 10**9,
        "t": 10**12,
        "K": 1 << 10,
        "M": 1 << 20,
        "G": 1 << 30,
        "T": 1 << 40,
    }
    if text[-1:] in scale:
        return int(float(text[:-1]) * scale[text[-1]])
    return int(text)


def non_default(words: Sequence[str], found: Sequence[tuple[str, list[str]]]) -> dict[str, object]:
    """The dict of vLLM's "non-default args" line: python names, typed values, the stand-in's own flags left
    out.
    """
    shown: dict[str, object] = {"model_tag": words[0], "model": words[0]} if words else {}
    for name, values in found:
        if name in SIM_FLAGS:
            continue
        key = name.lstrip("-").replace("-", "_")
        if key == "api_key":
            continue
        if name.startswith("--no-") or not values:
            shown[key.removeprefix("no_")] = not name.startswith("--no-")
        elif known_flags()[name][1] == "many":
            shown[key] = list(values)
        else:
            shown[key] = typed(values[0])
    return shown


def typed(text: str) -> object:
    """A value as the log shows it: a number where it is one."""
    for kind in (human_readable_int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
