"""What a fault's own words and the machine say, as numbers.

Sizes are bytes, times seconds. None is "not stated", never zero. Facts stay inside the process: the published
diagnosis carries them as evidence text.
"""

from __future__ import annotations

import msgspec


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds GPU memory, as a log or the driver names it. ``pid`` is the host's: evidence only."""

    pid: int
    used_bytes: int
    name: str | None = None


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """The numbers of torch's out-of-memory message (torch/csrc: CUDACachingAllocator)."""

    gpu: int | None = None
    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    neighbours: tuple[MemoryHolder, ...] = ()


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True, tag="cache"):
    """The numbers of "To serve at least one request…" (vllm/v1/core/kv_cache_utils.py)."""

    max_model_len: int | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None
    estimated_max_model_len: int | None = None


class OccupancyFacts(msgspec.Struct, frozen=True, kw_only=True, tag="occupancy"):
    """The numbers of "Free memory on device … is less than desired" (vllm/v1/worker/utils.py)."""

    device: str | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    utilization: float | None = None
    requested_bytes: int | None = None


class AssemblerFacts(msgspec.Struct, frozen=True, kw_only=True, tag="assembler"):
    """Which assembler refused which architecture (triton/backends/nvidia/compiler.py)."""

    arch: str | None = None
    path: str | None = None


class PortFacts(msgspec.Struct, frozen=True, kw_only=True, tag="port"):
    """The address that was taken."""

    host: str | None = None
    port: int | None = None


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True, tag="process"):
    """Which process ended how; ``signal`` is positive (9 = SIGKILL)."""

    process: str | None = None
    exit_code: int | None = None
    signal: int | None = None


Facts = MemoryFacts | CacheFacts | OccupancyFacts | AssemblerFacts | PortFacts | ProcessFacts
