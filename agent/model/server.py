"""The server under watch: its state, how it ended, what it runs with."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class State(str, enum.Enum):
    """The liveness states (the table of probes is in docs/probes.md)."""

    STARTING = "starting"
    SERVING = "serving"
    SATURATED = "saturated"
    STALLED = "stalled"
    DEAD = "dead"
    DRAINING = "draining"
    PAUSED = "paused"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One effective setting with the place that says so: ``log line 43``, ``argv``, ``default of vLLM 0.32``."""

    value: int | float | bool | str
    source: str


class EffectiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine really runs with; the OOM arithmetic starts here. None is "not stated anywhere"."""

    vllm_version: str | None = None
    max_num_seqs: Setting | None = None
    max_num_batched_tokens: Setting | None = None
    max_model_len: Setting | None = None
    gpu_memory_utilization: Setting | None = None
    kv_pool_bytes: Setting | None = None
    kv_pool_tokens: Setting | None = None
    weights_bytes: Setting | None = None
    chunked_prefill: Setting | None = None
    enforce_eager: Setting | None = None
    tensor_parallel_size: Setting | None = None
    data_parallel_size: Setting | None = None
    nnodes: Setting | None = None
    kv_connector: Setting | None = None
    multimodal_item_tokens: Setting | None = None
    model: Setting | None = None


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A compute process on a card, as the driver lists it. Host pid: evidence, never an argument to a signal."""

    pid: int
    used_bytes: int | None
    name: str | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One card as the launcher's ``probe gpu`` saw it."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    compute_capability: str | None = None
    processes: tuple[GpuProcess, ...] = ()


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How the server ended (the launcher's exit record). Times RFC 3339 UTC and monotonic seconds."""

    v: int = 1
    seq: int
    pid: int
    command_hash: str
    started_at: str
    ready_at: str | None
    exited_at: str
    started_monotonic: float | None = None
    ready_monotonic: float | None = None
    exited_monotonic: float | None = None
    code: int | None
    signal: int | None
    asked: bool
    reason: str
    oom_kill_delta: int | None
    log_offset: int


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the log when a cause is named. Everything may be missing."""

    exit: Exit | None = None
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    gpus: tuple[GpuReading, ...] | None = None
    vllm_version: str | None = None
    triton_version: str | None = None
