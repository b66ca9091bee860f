"""A vLLM plugin for tests: the worker runs out of memory when a step holds more than ``$OOM_ABOVE``
sequences.

In: the environment variable and each step's scheduler output. Out: ``torch.OutOfMemoryError`` raised from
``execute_model``, where a real activation would not fit, with the message of torch's CUDA allocator. It
never touches memory and never acts where the variable is unset. It stands in for the card that a machine
without a GPU lacks: only the allocation is invented, everything after it (the worker's and the engine's
logs, the exit) is vLLM's own.

vLLM finds it by the entry point group ``vllm.general_plugins`` when this folder is on PYTHONPATH
(vllm/plugins/__init__.py: load_general_plugins, called once in the API server, the engine and each worker).
"""

from __future__ import annotations

import os
from typing import Any

# An 80 GiB card that is full of one batch. The numbers agree with each other: 79.11 total - 1.02 free =
# 78.09 used by this process, of which 77.15 allocated, 0.31 reserved and 0.63 outside PyTorch. The reserve
# is far smaller than the request and nobody else holds memory, so neither fragmentation nor a neighbour
# explains it.
MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "1.02 GiB is free. Including non-PyTorch memory, this process has 78.09 GiB memory in use. Of the "
    "allocated memory 77.15 GiB is allocated by PyTorch, and 312.50 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
    "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def register() -> None:
    """Entry point. vLLM does not catch what this raises, so a wrong value stops the start with a clear
    text.
    """
    text = os.environ.get("OOM_ABOVE")
    if not text:
        return
    limit = int(text)
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    execute_model = WorkerWrapperBase.execute_model
    if getattr(execute_model, "oom_above", None) is not None:
        return

    def guarded(self: Any, scheduler_output: Any) -> Any:
        if len(scheduler_output.num_scheduled_tokens) > limit:
            import torch

            raise torch.OutOfMemoryError(MESSAGE)
        return execute_model(self, scheduler_output)

    guarded.oom_above = limit  # type: ignore[attr-defined]
    WorkerWrapperBase.execute_model = guarded
