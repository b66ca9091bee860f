"""The command line of ``vllm serve`` plus the stand-in's own ``--sim-*`` flags, parsed into one frozen
`Settings`.

In comes argv; out go `Settings`, or one of two refusals in vLLM's own words: `FlagError` (argparse, exit 2)
and `ValueFailure` (pydantic, exit 1). The list of vLLM's flags is data (``texts/flags.txt``, of vLLM 0.32.0),
because importing vLLM's parser takes seconds and gigabytes. As in vLLM, dashes and underscores are the same,
a unique prefix of a flag will do, and the last occurrence of a flag wins; that is how an agent's appended
overrides take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agent.errors import UsageError
from agent.sim.faults import Fault, find, parse_fault
from agent.sim.memory import GIB, Needs

TEXTS = Path(__file__).parent / "texts"
VERSIONS = ("0.32.0", "0.25.1")
#: The stand-in's own flags: name -> (default, what it is).
SIM_FLAGS: dict[str, tuple[str, str]] = {
    "--fault": ("", "NAME[=ARG], may be given several times"),
    "--seed-start-seconds": ("0.1", "how long the start takes"),
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


class ValueFailure(Exception):
    """pydantic would refuse the value: traceback, exit 1."""


@dataclass(frozen=True)
class Settings:
    """What the server was asked for. Lengths in tokens, sizes in bytes, times in seconds."""

    model: str
    served: tuple[str, ...]
    host: str
    port: int
    uds: str | None
    api_keys: tuple[str, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    operator_max_model_len: int
    gpu_memory_utilization: float
    kv_cache_memory: int | None
    blocks_override: int | None
    block_size: int
    eager: bool
    tensor_parallel_size: int
    shutdown_timeout: float
    prefix_caching: bool
    max_num_queued_reqs: int | None
    log_stats: bool
    load_tracking: bool
    access_log: bool
    ssl: tuple[str, str | None] | None
    faults: tuple[Fault, ...]
    total: int
    weights: int
    kv_bytes_per_token: int
    version: str
    step_seconds: float
    start_seconds: float
    hang_notice: float
    stats_seconds: float
    smi: str
    arch: int
    orphan_seconds: float
    non_default: dict[str, object] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """What vLLM prints as the address it listens on."""
        return (
            f"unix:{self.uds}" if self.uds else f"{'https' if self.ssl else 'http'}://{self.host}:{self.port}"
        )

    def needs(self, others: int) -> Needs:
        """The start-up arithmetic's input, with ``others`` bytes of the card held by other processes."""
        small = find(self.faults, "kv-too-small")
        cap = None
        if small is not None:
            cap = int(small.number(max(self.block_size, self.operator_max_model_len * 0.39)))
            cap -= cap % self.block_size
        tp = self.tensor_parallel_size
        return Needs(
            total=self.total,
            others=others,
            weights=self.weights // tp,
            utilisation=self.gpu_memory_utilization,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            kv_bytes_per_token=self.kv_bytes_per_token // tp,
            block_size=self.block_size,
            eager=self.eager,
            kv_cache_memory=self.kv_cache_memory,
            blocks_override=self.blocks_override,
            pool_cap_tokens=cap,
        )


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


class _Flags:
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
            raise FlagError(
                f"argument {name}: invalid {kind.__name__.strip('_')} value: {values[0]!r}"
            ) from None

    def integer(self, name: str, default: int) -> int:
        value = self.number(name, _human_readable_int, default)
        return default if value is None else int(value)

    def maybe_integer(self, name: str) -> int | None:
        value = self.number(name, _human_readable_int, None)
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


def _human_readable_int(text: str) -> int:
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


def parse(argv: Sequence[str]) -> Settings:
    """argv after ``agent sim`` to `Settings`; raises `FlagError`, `ValueFailure` or (own flags) "
    "`UsageError`."""
    words, found = scan([*argv[1:]] if argv[:1] == ["serve"] else argv)
    flags = _Flags(found)
    model = words[0] if words else flags.text("--model", "/models/llama-8b")
    total = int(flags.sim("--sim-gpu-gib") * GIB)
    max_len, operator_len = _lengths(flags, int(flags.sim("--sim-model-max-len")))
    seqs, batched = _batch(flags, total, max_len)
    kv_memory = flags.maybe_integer("--kv-cache-memory-bytes")
    cert = flags.text("--ssl-certfile", "")
    version = flags.text("--sim-vllm-version", VERSIONS[0])
    if version not in VERSIONS:
        remedy = f"Use one of {', '.join(VERSIONS)}."
        raise UsageError(f"no captures of vLLM {version}", where="--sim-vllm-version", remedy=remedy)
    return Settings(
        model=model,
        served=tuple(flags.last.get("--served-model-name") or [model]),
        host=flags.text("--host", "0.0.0.0"),
        port=flags.integer("--port", 8000),
        uds=flags.text("--uds", "") or None,
        api_keys=tuple(flags.last.get("--api-key") or ()),
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_model_len=max_len,
        operator_max_model_len=operator_len,
        gpu_memory_utilization=_utilisation(flags),
        kv_cache_memory=kv_memory or None,
        blocks_override=flags.maybe_integer("--num-gpu-blocks-override"),
        block_size=flags.integer("--block-size", 16),
        eager=flags.switch("--enforce-eager", False),
        tensor_parallel_size=max(1, flags.integer("--tensor-parallel-size", 1)),
        shutdown_timeout=flags.integer("--shutdown-timeout", 0),
        prefix_caching=flags.switch("--enable-prefix-caching", True),
        max_num_queued_reqs=flags.maybe_integer("--max-num-queued-reqs"),
        log_stats="--disable-log-stats" not in flags.last,
        load_tracking=flags.switch("--enable-server-load-tracking", False),
        access_log=not flags.switch("--disable-uvicorn-access-log", False),
        ssl=(cert, flags.text("--ssl-keyfile", "") or None) if cert else None,
        faults=tuple(parse_fault(values[0]) for name, values in found if name == "--fault"),
        total=total,
        weights=int(flags.sim("--sim-weights-gib") * GIB),
        kv_bytes_per_token=int(flags.sim("--sim-kv-bytes-per-token")),
        version=version,
        step_seconds=flags.sim("--sim-step-seconds"),
        start_seconds=flags.sim("--seed-start-seconds"),
        hang_notice=flags.sim("--sim-hang-notice"),
        stats_seconds=flags.sim("--sim-stats-seconds"),
        smi=flags.text("--sim-smi", ""),
        arch=int(flags.sim("--sim-arch")),
        orphan_seconds=flags.sim("--sim-orphan-seconds"),
        non_default=non_default(words, found),
    )


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
            shown[key] = _typed(values[0])
    return shown


def _typed(text: str) -> object:
    for kind in (_human_readable_int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _lengths(flags: _Flags, model_max: int) -> tuple[int, int]:
    """(effective, first given) context length; raises for one above the model's own."""
    given = [values[0] for name, values in flags.found if name == "--max-model-len" and values]
    if not given or given[-1] in ("auto", "-1"):
        return model_max, model_max
    length = flags.integer("--max-model-len", model_max)
    if length < 1:
        raise ValueFailure(_pydantic("ModelConfig", "max_model_len", "greater than or equal to 1", length))
    if length > model_max:
        raise ValueFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({length}) is greater than the derived "
            "max_model_len "
            f"(max_position_embeddings={float(model_max)} or model_max_length=None in model's config.json). "
            "To allow "
            "overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. [type=value_error, "
            "input_value=ArgsKwargs(), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
        )
    first = _typed(given[0])
    return length, first if isinstance(first, int) and first > 0 else length


def _batch(flags: _Flags, total: int, max_len: int) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) with the defaults of vLLM's `get_batch_defaults` for an API
    server.
    """
    big = total >= 70 * GIB
    default_tokens = 16384 if total >= 160 * GIB else 8192 if big else 2048
    seqs = flags.maybe_integer("--max-num-seqs")
    batched = flags.maybe_integer("--max-num-batched-tokens")
    if batched is None:
        batched = default_tokens if seqs is None else min(default_tokens, seqs * max_len)
    if seqs is None:
        seqs = min(1024 if big else 256, max(1, batched))
    bad = [(n, v) for n, v in (("max_num_batched_tokens", batched), ("max_num_seqs", seqs)) if v < 1]
    if bad:
        raise ValueFailure(
            _pydantic_many("SchedulerConfig", [(n, "greater than or equal to 1", v) for n, v in bad])
        )
    if batched < seqs:
        raise ValueFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
            f"  Value error, max_num_batched_tokens ({batched}) must be greater than or equal to "
            f"max_num_seqs ({seqs}). "
            "[type=value_error, input_value=ArgsKwargs(), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
        )
    return seqs, batched


def _utilisation(flags: _Flags) -> float:
    value = flags.number("--gpu-memory-utilization", float, 0.92)
    share = 0.92 if value is None else value
    if not 0 < share <= 1:
        rule = "less than or equal to 1" if share > 1 else "greater than 0"
        raise ValueFailure(_pydantic("CacheConfig", "gpu_memory_utilization", rule, share))
    return share


def _pydantic(config: str, name: str, rule: str, value: float) -> str:
    return _pydantic_many(config, [(name, rule, value)])


def _pydantic_many(config: str, bad: list[tuple[str, str, float]]) -> str:
    """pydantic's text for values out of bounds."""
    lines = [
        f"pydantic_core._pydantic_core.ValidationError: {len(bad)} validation error"
        f"{'s' if len(bad) > 1 else ''} for {config}"
    ]
    for name, rule, value in bad:
        kind = rule.rsplit(" ", 1)[0].replace(" or equal to", "_equal").replace(" than", "_than")
        kind = {"greater_than_equal": "greater_than_equal", "less_than_equal": "less_than_equal"}.get(
            kind, kind
        )
        kind = kind.replace(" ", "_")
        lines += [
            name,
            f"  Input should be {rule} [type={kind}, input_value={value}, input_type={type(value).__name__}]",
            f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}",
        ]
    return "\n".join(lines)
