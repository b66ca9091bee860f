"""A stand-in of ``nvidia-smi``: answers the two CSV queries from the state file of the stand-in's card.

In come ``--query-gpu=…`` or ``--query-compute-apps=…`` with ``--format=csv[,noheader][,nounits]``; out goes
CSV as the real tool prints it, "[N/A]" for what the stand-in cannot know. ``$VLLM_SIM_SMI`` names the state
file. It is used through PATH, so that what reads the real tool needs no switch for tests; `write_stub` makes
the executable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.sim import gpu_state
from agent.sim.gpu_state import App, Gpu, State

_GPU: dict[str, tuple[Callable[[Gpu, State], str], str]] = {
    "index": (lambda g, s: str(g.index), ""),
    "uuid": (lambda g, s: g.uuid, ""),
    "gpu_uuid": (lambda g, s: g.uuid, ""),
    "name": (lambda g, s: g.name, ""),
    "gpu_name": (lambda g, s: g.name, ""),
    "count": (lambda g, s: str(len(s.gpus)), ""),
    "driver_version": (lambda g, s: "580.65.06", ""),
    "compute_cap": (lambda g, s: g.capability, ""),
    "memory.total": (lambda g, s: str(g.total), "MiB"),
    "memory.used": (lambda g, s: str(min(g.total, s.used(g.uuid))), "MiB"),
    "memory.free": (lambda g, s: str(max(0, g.total - s.used(g.uuid))), "MiB"),
    "memory.reserved": (lambda g, s: "0", "MiB"),
    "utilization.gpu": (lambda g, s: "[N/A]", "%"),
    "temperature.gpu": (lambda g, s: "[N/A]", ""),
    "power.draw": (lambda g, s: "[N/A]", "W"),
    "mig.mode.current": (lambda g, s: "Disabled", ""),
}
_APP: dict[str, tuple[Callable[[App, State], str], str]] = {
    "gpu_uuid": (lambda a, s: a.uuid, ""),
    "gpu_name": (lambda a, s: next((g.name for g in s.gpus if g.uuid == a.uuid), "[N/A]"), ""),
    "pid": (lambda a, s: str(a.pid), ""),
    "process_name": (lambda a, s: a.name, ""),
    "name": (lambda a, s: a.name, ""),
    "used_memory": (lambda a, s: str(a.used), "MiB"),
    "used_gpu_memory": (lambda a, s: str(a.used), "MiB"),
}


def main(argv: Sequence[str]) -> int:
    """Answer one query; 0, or what the real tool exits with: 2 for a bad field, 9 without a driver."""
    options = dict(part.partition("=")[::2] for part in argv)
    path = os.environ.get("VLLM_SIM_SMI", "")
    state = gpu_state.read(path)
    if not state.gpus:
        _print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
            "the latest "
            "NVIDIA driver is installed and running."
        )
        return 9
    style = options.get("--format", "csv").split(",")
    fields = options.get("--query-gpu")
    if fields is not None:
        return _answer(fields, _GPU, list(_chosen(state, options)), state, style)
    fields = options.get("--query-compute-apps")
    if fields is not None:
        return _answer(fields, _APP, list(state.apps), state, style)
    if "-L" in options or "--list-gpus" in options:
        for gpu in state.gpus:
            _print(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        return 0
    _print('Invalid combination of input arguments. Please run "nvidia-smi -h" for help.')
    return 1


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _chosen(state: State, options: dict[str, str]) -> Sequence[Gpu]:
    wanted = options.get("--id") or options.get("-i")
    if not wanted:
        return state.gpus
    keys = wanted.split(",")
    return [g for g in state.gpus if str(g.index) in keys or g.uuid in keys]


def _answer(
    fields: str,
    known: dict[str, tuple[Callable[..., str], str]],
    rows: Sequence[object],
    state: State,
    style: Sequence[str],
) -> int:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if name not in known:
            _print(f'Field "{name}" is not a valid field to query.\n')
            return 2
    units = "nounits" not in style
    if "noheader" not in style:
        _print(", ".join(f"{n} [{known[n][1]}]" if known[n][1] else n for n in names))
    for row in rows:
        cells = []
        for name in names:
            get, unit = known[name]
            text = get(row, state)
            cells.append(f"{text} {unit}" if units and unit and text != "[N/A]" else text)
        _print(", ".join(cells))
    return 0


def write_stub(folder: Path, state: Path) -> Path:
    """Write an executable ``nvidia-smi`` into ``folder`` that answers from ``state``; returns its path.

    It carries this interpreter and the place of this package, so it works with any working folder and PATH.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stub = folder / "nvidia-smi"
    root = Path(__file__).resolve().parents[2]
    stub.write_text(
        "#!/bin/sh\n"
        f'export VLLM_SIM_SMI="${{VLLM_SIM_SMI:-{state}}}" PYTHONPATH="{root}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'exec "{sys.executable}" -m agent.sim.smi "$@"\n'
    )
    stub.chmod(0o755)
    return stub


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
