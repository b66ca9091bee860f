"""Everything that a server was asked for, in one frozen `Settings`.

In comes argv: the command line of ``vllm serve`` plus the stand-in's own ``--sim-*`` flags. Out go
`Settings`, or one of two refusals in vLLM's own words (`FlagError`, exit 2; `ValueFailure`, exit 1), or
`UsageError` for the stand-in's own flags. Nothing here looks at the environment or at the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.errors import UsageError
from agent.sim.faults import Fault, find, parse_fault
from agent.sim.flags import VERSIONS, Flags, non_default, scan
from agent.sim.limits import batch, lengths, utilisation
from agent.sim.memory import GIB, Needs


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
        return f"unix:{self.uds}" if self.uds else f"{'https' if self.ssl else 'http'}://{self.host}:{self.port}"

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


def parse(argv: Sequence[str]) -> Settings:
    """argv after ``agent sim`` to `Settings`; raises `FlagError`, `ValueFailure` or (own flags) "
    "`UsageError`."""
    words, found = scan([*argv[1:]] if argv[:1] == ["serve"] else argv)
    flags = Flags(found)
    model = words[0] if words else flags.text("--model", "/models/llama-8b")
    total = int(flags.sim("--sim-gpu-gib") * GIB)
    max_len, operator_len = lengths(flags, int(flags.sim("--sim-model-max-len")))
    seqs, batched = batch(flags, total, max_len)
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
        gpu_memory_utilization=utilisation(flags),
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
        start_seconds=flags.sim("--sim-start-seconds"),
        hang_notice=flags.sim("--sim-hang-notice"),
        stats_seconds=flags.sim("--sim-stats-seconds"),
        smi=flags.text("--sim-smi", ""),
        arch=int(flags.sim("--sim-arch")),
        orphan_seconds=flags.sim("--sim-orphan-seconds"),
        non_default=non_default(words, found),
    )
