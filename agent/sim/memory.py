"""The card's memory, in the arithmetic that vLLM uses, so that a remedy's arithmetic can be checked against
it.

In come the settings and how much of the card other processes hold; out comes the KV pool, or the failure with
which vLLM 0.32 refuses to start (v1/worker/utils.py `request_memory`, v1/core/kv_cache_utils.py
`_check_enough_kv_cache_memory`). The same numbers make the text of a torch.OutOfMemoryError while serving.

The activation peak is linear in the batch. The two slopes are fitted to an H200 with vLLM 0.25.1, where
65,536 tokens and 1,024 sequences left a pool of 130.68 GiB and half of both 132.56 GiB, and 8,192 tokens and
256 sequences with CUDA graphs left 66.55 of 69.9 GiB beside 2.32 GiB of weights: 56 KiB a token, 0.5 MiB a
sequence, 0.45 GiB of graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20
TOKEN_BYTES = 56 << 10
SEQUENCE_BYTES = 512 << 10
GRAPH_BYTES = int(0.45 * GIB)
#: CUDA context and libraries: in use, but not by PyTorch.
CONTEXT_BYTES = int(0.5 * GIB)
#: What one sequence more costs a step in the OOM faults.
OOM_SEQUENCE_BYTES = 128 * MIB
CONSERVE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


class StartFailure(Exception):
    """The engine cannot start; ``kind`` picks the stack that is printed, the message is vLLM's own."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Needs:
    """What the start-up arithmetic depends on. Sizes in bytes, lengths in tokens."""

    total: int
    others: int
    weights: int
    utilisation: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_bytes_per_token: int
    block_size: int
    eager: bool
    kv_cache_memory: int | None = None
    blocks_override: int | None = None
    pool_cap_tokens: int | None = None

    @property
    def peak(self) -> int:
        """Bytes of the largest step plus the CUDA graphs: what vLLM's profiling run measures."""
        graphs = 0 if self.eager else GRAPH_BYTES
        return self.max_num_batched_tokens * TOKEN_BYTES + self.max_num_seqs * SEQUENCE_BYTES + graphs


@dataclass(frozen=True)
class Pool:
    """The KV pool of a server that could start."""

    available: int
    blocks: int
    tokens: int
    concurrency: float
    bytes: int


def gib(size: float) -> str:
    """As vLLM's `format_gib`: two digits, no trailing zeros but one (4.0, 1.55)."""
    return str(round(size / GIB, 2))


def torch_size(size: int) -> str:
    """As PyTorch's allocator prints a size (c10/cuda/CUDACachingAllocator.cpp `format_size`)."""
    if size <= 1024:
        return f"{size} bytes"
    for limit, unit, name in ((MIB, 1 << 10, "KiB"), (GIB, MIB, "MiB")):
        if size <= limit:
            return f"{size / unit:.2f} {name}"
    return f"{size / GIB:.2f} GiB"


def plan(needs: Needs) -> Pool:
    """The KV pool, or `StartFailure`: too little free memory, weights or pool too large, no block, too few
    blocks.
    """
    free = needs.total - needs.others - CONTEXT_BYTES
    requested = int(needs.total * needs.utilisation)
    if free < requested:
        raise StartFailure(
            "device",
            f"Free memory on device cuda:0 ({gib(free)}/{gib(needs.total)} GiB) on startup is less than "
            "desired GPU "
            f"memory utilization ({needs.utilisation}, {gib(requested)} GiB). Decrease GPU memory "
            "utilization or "
            "reduce GPU memory used by other processes.",
        )
    if needs.weights > free:
        raise StartFailure("load", _torch_oom(needs, needs.weights - free + 112 * MIB, free))
    available = requested - needs.weights - needs.peak
    if needs.kv_cache_memory is not None:
        available = needs.kv_cache_memory
        left = free - needs.weights - needs.peak
        if available > left:
            raise StartFailure("allocate", _torch_oom(needs, available, left))
    if needs.pool_cap_tokens is not None:
        available = min(available, needs.pool_cap_tokens * needs.kv_bytes_per_token)
    return _fit(needs, available)


def _fit(needs: Needs, available: int) -> Pool:
    """Blocks out of bytes, with vLLM's two refusals."""
    if available <= 0:
        raise StartFailure(
            "blocks",
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the "
            "engine (this flag also controls CPU memory reservation on the CPU backend, despite its name). " + CONSERVE,
        )
    block_bytes = needs.block_size * needs.kv_bytes_per_token
    blocks = available // block_bytes
    if needs.blocks_override is not None:
        blocks = needs.blocks_override
    tokens = blocks * needs.block_size
    wanted = -(-needs.max_model_len // needs.block_size) * block_bytes
    if wanted > blocks * block_bytes:
        have = min(available, blocks * block_bytes) if needs.blocks_override is not None else available
        estimate = f"Based on the available memory, the estimated maximum model length is {tokens}. " if tokens else ""
        raise StartFailure(
            "blocks",
            f"To serve at least one request with the model's max seq len ({needs.max_model_len}), "
            f"({gib(wanted)} GiB "
            f"KV cache is needed, which is larger than the available KV cache memory ({gib(have)} GiB). "
            f"{estimate}Try "
            "increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or "
            "decreasing "
            f"`max_model_len` when initializing the engine. {CONSERVE}",
        )
    return Pool(available, blocks, tokens, tokens / needs.max_model_len, blocks * block_bytes)


@dataclass(frozen=True)
class Shortage:
    """The numbers of one torch.OutOfMemoryError, in bytes; ``neighbours`` are (pid, bytes) of other
    processes.
    """

    requested: int
    total: int
    free: int
    unallocated: int
    neighbours: tuple[tuple[int, int], ...] = ()

    def text(self) -> str:
        """The message as PyTorch 2.11 and later print it; the numbers add up to the card's total."""
        in_use = max(0, self.total - self.free - sum(size for _, size in self.neighbours))
        allocated = max(0, in_use - CONTEXT_BYTES - self.unallocated)
        others = "".join(f"Process {pid} has {torch_size(size)} memory in use. " for pid, size in self.neighbours)
        return (
            f"CUDA out of memory. Tried to allocate {torch_size(self.requested)}. GPU 0 has a total "
            "capacity of "
            f"{torch_size(self.total)} of which {torch_size(self.free)} is free. Including non-PyTorch "
            "memory, this "
            f"process has {torch_size(in_use)} memory in use. {others}Of the allocated memory "
            f"{torch_size(allocated)} "
            f"is allocated by PyTorch, and {torch_size(self.unallocated)} is reserved by PyTorch but "
            "unallocated. If "
            "reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
            "avoid fragmentation.  See documentation for Memory Management  "
            "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )


def batch_shortage(total: int, spare: int, running: int, limit: int, *, fragmented: bool) -> Shortage:
    """A step of ``running`` sequences where ``limit`` would have fitted into the ``spare`` bytes beside the
    pool.

    Fragmented: the memory is there, reserved by PyTorch in pieces, so the reserve exceeds the request.
    """
    each = min(OOM_SEQUENCE_BYTES, max(2 * MIB, spare // (limit + 1)))
    requested = running * each
    if fragmented:
        return Shortage(requested, total, int(requested * 0.85), int(requested * 1.7))
    return Shortage(requested, total, int((limit + 0.5) * each), int(97.6 * MIB))


def _torch_oom(needs: Needs, requested: int, free: int) -> str:
    """A torch.OutOfMemoryError of the start: what is free is less than the request, the others are named."""
    free = max(0, min(free, requested - 2 * MIB))
    neighbours = ((0, needs.others),) if needs.others else ()
    return Shortage(requested, needs.total, free, 18 * MIB, neighbours).text()
