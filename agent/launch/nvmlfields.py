"""What NVML tells of a card, field by field, and what its errors mean. Runs only in the driver's own child process.

In: a binding (``pynvml`` of nvidia-ml-py, or the copy that vLLM ships) and a device handle. Out: rows ``(name, labels,
value)`` under the agent's metric names without their prefix, or the binding's error, for which this module has plain
words. Never decides which cards to ask (:mod:`agent.launch.nvml` does).

A field is read on its own: a symbol that an old driver lacks costs that field alone. What a call costs decides its
group: utilisation, power, energy and remapped rows take 2 to 4 ms each on an H200, the others under 0.5 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Row = tuple[str, dict[str, str], float]
NO_INSTANCE = 0xFFFFFFFF
INIT_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): the namespace whose pids NVML lists."""

NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND = 4, 9, 10, 12
UNINITIALIZED, NOT_SUPPORTED, FUNCTION_NOT_FOUND = 1, 3, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, GPU_NOT_FOUND, UNKNOWN = 15, 16, 18, 28, 999
DOWN = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
DRIVER_WIDE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
KINDS = {
    LIBRARY_NOT_FOUND: ("library-missing", "libnvidia-ml.so.1 is not here: no NVIDIA driver, or not mounted"),
    DRIVER_NOT_LOADED: ("driver-not-loaded", "the NVIDIA driver is not loaded"),
    NO_PERMISSION: ("no-permission", "this user may not ask the NVIDIA driver"),
    VERSION_MISMATCH: (
        "version-mismatch",
        "libnvidia-ml and the loaded NVIDIA driver are of different versions: the driver was changed under a running"
        " system; reload it or reboot",
    ),
}
WORDS = {
    NOT_SUPPORTED: "this card does not tell it", FUNCTION_NOT_FOUND: "this driver is too old to tell it",
    NO_PERMISSION: "this user may not read it", GPU_IS_LOST: "the GPU is lost: it no longer answers on the bus",
    RESET_REQUIRED: "the GPU needs a reset", GPU_NOT_FOUND: "the GPU is no longer there",
}  # fmt: skip
# nvml.h, nvmlClocksEventReasons; the last two were known by their old name alone.
CLOCK_EVENTS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip


class Trouble(Exception):
    """The driver as a whole cannot be asked. ``fresh``: only a new process can, since the library is loaded."""

    def __init__(self, kind: str, reason: str, *, fresh: bool = False) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.fresh = fresh


def find_binding() -> ModuleType | None:
    """nvidia-ml-py where it is installed, else vLLM's copy (vllm/third_party/pynvml.py, loaded without vLLM)."""
    with contextlib.suppress(Exception):
        module = importlib.import_module("pynvml")
        if hasattr(module, "nvmlEventSetWait_v2"):
            return module
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("vllm")
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(folder) / "third_party" / "pynvml.py"
            found = importlib.util.spec_from_file_location("pynvml", path)
            if path.is_file() and found and found.loader:
                module = importlib.util.module_from_spec(found)
                sys.modules["pynvml"] = module  # it looks itself up there while it is loaded
                found.loader.exec_module(module)
                return module
    return None


def code_of(error: BaseException) -> int | None:
    """NVML's number of an error; None for one of Python's own (a binding too old for a call)."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def words_for(error: BaseException) -> str:
    """Why one field is missing, in plain words."""
    code = code_of(error)
    if code in WORDS:
        return WORDS[code]
    if isinstance(error, AttributeError) or "Mismatch" in type(error).__name__:
        return "this binding of NVML does not know it" if code is None else str(error)
    return f"NVML: {error}" + (f" ({code})" if code is not None else "")


def trouble_of(error: BaseException) -> Trouble:
    """A driver-wide failure in plain words."""
    code = code_of(error)
    if code in KINDS:
        kind, reason = KINDS[code]
        return Trouble(kind, reason, fresh=code in (VERSION_MISMATCH, NO_PERMISSION))
    return Trouble("unknown", f"NVML cannot be used: {error}", fresh=True)


def _utilization(n: Any, handle: Any) -> Iterable[Row]:
    rates = n.nvmlDeviceGetUtilizationRates(handle)
    yield "gpu_utilization_ratio", {}, rates.gpu / 100
    yield "gpu_memory_utilization_ratio", {}, rates.memory / 100


def _power(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_power_watts", {}, n.nvmlDeviceGetPowerUsage(handle) / 1000


def _power_limit(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_power_limit_watts", {}, n.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000


def _energy(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_energy_joules_total", {}, n.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


def _temperature(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_temperature_celsius", {}, n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)


def _memory_temperature(n: Any, handle: Any) -> Iterable[Row]:
    value = n.nvmlDeviceGetFieldValues(handle, [n.NVML_FI_DEV_MEMORY_TEMP])[0]
    if value.nvmlReturn != 0:
        raise n.NVMLError(value.nvmlReturn)
    yield "gpu_memory_temperature_celsius", {}, value.value.uiVal


def _sm_clock(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_clock_hertz", {"name": "sm"}, n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM) * 1e6


def _memory_clock(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_clock_hertz", {"name": "memory"}, n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM) * 1e6


def _clock_events(n: Any, handle: Any) -> Iterable[Row]:
    bits = _renamed(n, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")(handle)
    for bit, name in CLOCK_EVENTS.items():
        yield "gpu_clock_event", {"reason": name}, float(bool(bits & bit))


def _renamed(n: Any, new: str, old: str) -> Callable[[Any], int]:
    """Both names of one call: drivers before 535 have the old symbol, bindings of CUDA 14 the new one alone."""

    def call(handle: Any) -> int:
        try:
            return int(getattr(n, new)(handle))
        except Exception as error:
            if code_of(error) != FUNCTION_NOT_FOUND and not isinstance(error, AttributeError):
                raise
            return int(getattr(n, old)(handle))

    return call


def _ecc_corrected(n: Any, handle: Any) -> Iterable[Row]:
    count = n.nvmlDeviceGetTotalEccErrors(handle, n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_VOLATILE_ECC)
    yield "gpu_ecc_errors_total", {"class": "corrected"}, count


def _ecc_uncorrected(n: Any, handle: Any) -> Iterable[Row]:
    count = n.nvmlDeviceGetTotalEccErrors(handle, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC)
    yield "gpu_ecc_errors_total", {"class": "uncorrected"}, count


def _remapped(n: Any, handle: Any) -> Iterable[Row]:
    corrected, uncorrected, pending, failed = n.nvmlDeviceGetRemappedRows(handle)
    yield "gpu_remapped_rows", {"class": "correctable"}, corrected
    yield "gpu_remapped_rows", {"class": "uncorrectable"}, uncorrected
    yield "gpu_remap_pending", {}, float(bool(pending))
    yield "gpu_remap_failed", {}, float(bool(failed))


def _replays(n: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_pcie_replays_total", {}, n.nvmlDeviceGetPcieReplayCounter(handle)


Read = Callable[[Any, Any], Iterable[Row]]
CHEAP: Mapping[str, Read] = {
    "power_limit": _power_limit, "temperature": _temperature, "memory_temperature": _memory_temperature,
    "sm_clock": _sm_clock, "memory_clock": _memory_clock, "clock_event": _clock_events,
    "ecc_corrected": _ecc_corrected, "ecc_uncorrected": _ecc_uncorrected, "pcie_replays": _replays,
}  # fmt: skip
COSTLY: Mapping[str, Read] = {
    "utilization": _utilization, "power": _power, "energy": _energy, "remapped_rows": _remapped,
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes; ``reserved`` is what the driver keeps for itself, None where an old driver counts it as used."""

    total: int
    used: int
    free: int
    reserved: int | None

    def rows(self) -> Iterable[Row]:
        yield "gpu_memory_total_bytes", {}, self.total
        yield "gpu_memory_used_bytes", {}, self.used
        yield "gpu_memory_free_bytes", {}, self.free
        if self.reserved is not None:
            yield "gpu_memory_reserved_bytes", {}, self.reserved


def read_memory(n: Any, handle: Any) -> Memory:
    """The second form of the call (driver 510 and later), else the first."""
    try:
        memory = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
        return Memory(memory.total, memory.used, memory.free, memory.reserved)
    except Exception as error:
        if code_of(error) in DOWN | DRIVER_WIDE:
            raise
        memory = n.nvmlDeviceGetMemoryInfo(handle)
        return Memory(memory.total, memory.used, memory.free, None)


def process_rows(found: Iterable[tuple[int, int | None]], own: frozenset[int] | None) -> Iterable[Row]:
    """Number and bytes per class; all are ``unknown`` where pids cannot be matched. Bytes are left out where the
    driver does not tell them for one process of the class."""
    names = ("unknown",) if own is None else ("own", "foreign")
    sums: dict[str, list[int | None]] = {name: [] for name in names}
    for pid, used in found:
        sums["unknown" if own is None else "own" if pid in own else "foreign"].append(used)
    for name, sizes in sums.items():
        yield "gpu_processes", {"class": name}, len(sizes)
        known = [size for size in sizes if size is not None]
        if len(known) == len(sizes):
            yield "gpu_process_memory_bytes", {"class": name}, sum(known)


def pids_match() -> bool:
    """Whether the pids that a driver lists are those of this PID namespace: only in the host's own."""
    try:
        return os.readlink("/proc/self/ns/pid") == INIT_PID_NAMESPACE  # noqa: PTH115
    except OSError:
        return False


def text_of(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
