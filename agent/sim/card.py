"""What the engine holds of the card, and when a step no longer fits on it.

In come the planned start (`Needs`, `Pool`), the faults and the step at hand; out goes None or a `Shortage`,
the numbers of a torch.OutOfMemoryError. It keeps the state file up to date, where the neighbour lives on
across restarts. A decision depends only on its arguments, the environment and that file: nothing is counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from agent.sim import gpu_state
from agent.sim.faults import Fault, find
from agent.sim.gpu_state import App, Gpu, State
from agent.sim.memory import (
    CONTEXT_BYTES,
    GIB,
    GRAPH_BYTES,
    MIB,
    TOKEN_BYTES,
    Needs,
    Pool,
    Shortage,
    batch_shortage,
)
from agent.sim.scheduler import Step

DEFAULT_NEIGHBOUR_GIB = 20
UUID = "GPU-5109e0d1-0000-4000-8000-000000000000"


class Card:
    """The card as this engine sees it; sizes in bytes."""

    def __init__(self, smi: str, arch: int, needs: Needs, environ: Mapping[str, str]) -> None:
        self.smi = smi
        self.arch = arch
        self.needs = needs
        self.environ = environ
        self.pool = Pool(0, 0, 0, 0.0, 0)

    def hold(self, pool: Pool) -> None:
        """The engine has started: weights, pool and peak are taken."""
        self.pool = pool
        gpu_state.change(self.smi, lambda state: self._hold(state, self.footprint()))

    def shortage(self, step: Step, faults: tuple[Fault, ...]) -> Shortage | None:
        """Why this step does not fit, or None."""
        return self._neighbour_shortage(step, faults) or self._batch_shortage(step, faults)

    def others(self, faults: tuple[Fault, ...]) -> int:
        """Bytes of the card that other processes hold before this start."""
        known = gpu_state.read(self.smi).used(UUID, besides=os.getpid()) * MIB
        guest = find(faults, "oom-neighbour")
        if guest is not None and guest.arg.endswith("@start"):
            return max(known, int(guest.number(DEFAULT_NEIGHBOUR_GIB) * GIB))
        return known

    def footprint(self) -> int:
        """Bytes that this engine holds of the card."""
        return self.needs.weights + self.pool.bytes + self.needs.peak + CONTEXT_BYTES

    def _hold(self, state: State, size: int) -> State:
        name = "NVIDIA H100 80GB HBM3" if self.arch == 90 else f"NVIDIA sm_{self.arch}"
        gpu = Gpu(0, UUID, name, self.needs.total // MIB, f"{self.arch // 10}.{self.arch % 10}")
        app = App(UUID, os.getpid(), size // MIB, "VLLM::EngineCore")
        return gpu_state.with_app(gpu_state.with_gpu(state, gpu), app)

    def neighbour_leaves(self) -> None:
        """The guest is taken off the card."""
        gone = App(UUID, gpu_state.NEIGHBOUR_PID, 0, "python3", guest=True)
        gpu_state.change(self.smi, lambda state: gpu_state.with_app(state, gone))
        self.needs = replace(self.needs, others=0)

    def _spare(self) -> int:
        """Bytes beside weights, pool and graphs: what a step's activations can take."""
        held = self.needs.weights + self.pool.bytes + CONTEXT_BYTES + self.needs.others
        return max(0, self.needs.total - held - (0 if self.needs.eager else GRAPH_BYTES))

    def _batch_shortage(self, step: Step, faults: tuple[Fault, ...]) -> Shortage | None:
        expandable = any(
            "expandable_segments:True" in self.environ.get(name, "")
            for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        )
        for fault in faults:
            fragmented = fault.name == "oom-fragmented"
            if fault.name not in ("oom-above", "oom-fragmented") or (fragmented and expandable):
                continue
            amount = sum(step.scheduled.values()) if fault.in_tokens else len(step.scheduled)
            limit = int(fault.number(0))
            if amount > limit:
                return batch_shortage(self.needs.total, self._spare(), amount, limit, fragmented=fragmented)
        return None

    def _neighbour_shortage(self, step: Step, faults: tuple[Fault, ...]) -> Shortage | None:
        """Another process has come while this one serves, and both do not fit on the card."""
        fault = find(faults, "oom-neighbour")
        wanted = int(fault.number(DEFAULT_NEIGHBOUR_GIB) * GIB) if fault is not None else 0
        if wanted <= self.needs.others:
            return None
        guest = App(UUID, gpu_state.NEIGHBOUR_PID, wanted // MIB, "python3", guest=True)
        gpu_state.change(self.smi, lambda state: gpu_state.with_app(state, guest))
        if self.footprint() + wanted <= self.needs.total:
            self.needs = replace(self.needs, others=wanted)
            return None
        requested = max(32 * MIB, sum(step.scheduled.values()) * TOKEN_BYTES // MIB * MIB)
        return Shortage(requested, self.needs.total, int(3.56 * MIB), int(117.7 * MIB), ((guest.pid, wanted),))
