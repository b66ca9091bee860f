"""AMD cards through amdsmi, under the same metric names as NVIDIA's. Runs only in the driver's own child process.

In: the ``amdsmi`` binding (it loads ``libamd_smi.so`` at import) and the server's environment. Out: samples of the
server's own cards and the reason for each field that is missing. AMD has no Xid: that is said, not left out.

Units are those of amd_smi/amdsmi.h: watts, MHz, degrees, bytes, and an energy counter times its resolution in
microjoules. The binding writes ``N/A`` where the library holds the largest number.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from agent.launch.nvmlfields import Row, Trouble, pids_match, process_rows
from agent.launch.selection import Card, Chosen, choose_amd

NOT_SUPPORTED, NOT_IMPLEMENTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 2, 3, 10, 31, 34
WORDS = {
    NOT_SUPPORTED: "this card does not tell it", NOT_IMPLEMENTED: "this driver is too old to tell it",
    NO_PERMISSION: "this user may not read it", NOT_FOUND: "the GPU is no longer there",
}  # fmt: skip


def load_binding() -> ModuleType:
    """``amdsmi``. Raises Trouble: without ROCm its import ends in a KeyError, with a half-installed one in others."""
    try:
        return importlib.import_module("amdsmi")
    except ModuleNotFoundError as error:
        if error.name == "amdsmi":
            raise Trouble("no-binding", "amdsmi is not installed") from None
        raise Trouble("library-missing", f"amdsmi cannot be imported: {error}") from error
    except Exception as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == "amdsmi"]:
            del sys.modules[name]
        reason = "libamd_smi.so is not here: no ROCm, or not mounted"
        if not isinstance(error, KeyError):
            reason = f"amdsmi cannot be imported: {type(error).__name__}: {error}"
        raise Trouble("library-missing", reason) from error


def _activity(a: Any, handle: Any) -> Iterable[Row]:
    activity = a.amdsmi_get_gpu_activity(handle)
    yield "gpu_utilization_ratio", {}, _number(activity["gfx_activity"]) / 100
    yield "gpu_memory_utilization_ratio", {}, _number(activity["umc_activity"]) / 100


def _power(a: Any, handle: Any) -> Iterable[Row]:
    power = a.amdsmi_get_power_info(handle)
    for name in ("current_socket_power", "average_socket_power", "socket_power"):
        with contextlib.suppress(_NotTold):
            yield "gpu_power_watts", {}, _number(power.get(name))
            break
    yield "gpu_power_limit_watts", {}, _number(power.get("power_limit"))


def _energy(a: Any, handle: Any) -> Iterable[Row]:
    energy = a.amdsmi_get_energy_count(handle)
    ticks = energy.get("energy_accumulator", energy.get("power"))
    yield "gpu_energy_joules_total", {}, _number(ticks) * _number(energy["counter_resolution"]) / 1e6


def _temperature(a: Any, handle: Any) -> Iterable[Row]:
    kind = a.AmdSmiTemperatureType
    now = a.AmdSmiTemperatureMetric.CURRENT
    yield "gpu_temperature_celsius", {}, _number(a.amdsmi_get_temp_metric(handle, kind.HOTSPOT, now))


def _memory_temperature(a: Any, handle: Any) -> Iterable[Row]:
    kind = a.AmdSmiTemperatureType
    now = a.AmdSmiTemperatureMetric.CURRENT
    yield "gpu_memory_temperature_celsius", {}, _number(a.amdsmi_get_temp_metric(handle, kind.VRAM, now))


def _clocks(a: Any, handle: Any) -> Iterable[Row]:
    for name, kind in (("sm", a.AmdSmiClkType.GFX), ("memory", a.AmdSmiClkType.MEM)):
        clock = a.amdsmi_get_clock_info(handle, kind)
        yield "gpu_clock_hertz", {"name": name}, _number(clock.get("clk", clock.get("cur_clk"))) * 1e6


def _ecc(a: Any, handle: Any) -> Iterable[Row]:
    count = a.amdsmi_get_gpu_total_ecc_count(handle)
    yield "gpu_ecc_errors_total", {"class": "corrected"}, _number(count["correctable_count"])
    yield "gpu_ecc_errors_total", {"class": "uncorrected"}, _number(count["uncorrectable_count"])


def _replays(a: Any, handle: Any) -> Iterable[Row]:
    yield "gpu_pcie_replays_total", {}, _number(a.amdsmi_get_gpu_pci_replay_counter(handle))


Read = Callable[[Any, Any], Iterable[Row]]
CHEAP: Mapping[str, Read] = {
    "temperature": _temperature, "memory_temperature": _memory_temperature, "clocks": _clocks, "ecc": _ecc,
    "pcie_replays": _replays,
}  # fmt: skip
COSTLY: Mapping[str, Read] = {"utilization": _activity, "power": _power, "energy": _energy}
ABSENT = ("clock_event", "remapped_rows")


class Amd:
    """One initialised amdsmi."""

    name = "amdsmi"

    def __init__(self, binding: Any, env: Mapping[str, str]) -> None:
        self._a = binding
        self._env = env
        self._devices: list[tuple[Chosen, Any]] = []
        self.driver_version: str | None = None

    def open(self) -> None:
        """Initialise and find the own cards. Raises Trouble."""
        try:
            self._a.amdsmi_init()
            handles = self._a.amdsmi_get_processor_handles()
            cards = [Card(index, self._uuid(handle), self._name(handle)) for index, handle in enumerate(handles)]
        except Exception as error:
            kind = "driver-not-loaded" if _code(error) == DRIVER_NOT_LOADED else "unknown"
            raise Trouble(kind, f"amdsmi cannot be used: {_line(error)}", fresh=True) from error
        if not cards:
            self.close()
            raise Trouble("driver-not-loaded", "amdsmi sees no AMD card")
        self._devices = [(one, handles[one.card.index]) for one in choose_amd(cards, self._env)]

    def close(self) -> None:
        """Leave the driver."""
        with contextlib.suppress(Exception):
            self._a.amdsmi_shut_down()

    def _uuid(self, handle: Any) -> str:
        with contextlib.suppress(Exception):
            return str(self._a.amdsmi_get_gpu_device_uuid(handle))
        return ""

    def _name(self, handle: Any) -> str:
        with contextlib.suppress(Exception):
            return str(self._a.amdsmi_get_gpu_asic_info(handle)["market_name"])
        return "AMD GPU"

    def read(self, *, costly: bool, own: frozenset[int] | None) -> dict[str, object]:
        """Every own card."""
        cards = [self._card(chosen, handle, costly, own) for chosen, handle in self._devices]
        reason = "AMD's driver has no Xid events"
        return {"driver": None, "cards": cards, "note": None, "xid_reason": reason}

    def _card(self, chosen: Chosen, handle: Any, costly: bool, own: frozenset[int] | None) -> dict[str, object]:
        head: dict[str, object] = {"index": chosen.card.index, "uuid": chosen.uuid, "name": chosen.card.name}
        rows: list[Row] = []
        failed = dict.fromkeys(ABSENT, "AMD's driver does not tell it")
        total: int | None = None
        used: int | None = None
        try:
            total, used = self._memory(handle)
        except Exception as error:
            if _code(error) in (NOT_FOUND, DRIVER_NOT_LOADED):
                down = WORDS.get(_code(error) or 0, _line(error))
                return {**head, "up": False, "reason": down, "samples": [], "failed": {}, "reading": None}
            failed["memory"] = _why(error)
        if total is not None and used is not None:
            rows += [("gpu_memory_total_bytes", {}, total), ("gpu_memory_used_bytes", {}, used),
                     ("gpu_memory_free_bytes", {}, total - used)]  # fmt: skip
        processes = self._processes(handle, rows, failed, own)
        for name, read in ({**CHEAP, **COSTLY} if costly else CHEAP).items():
            try:
                rows.extend(read(self._a, handle))
            except Exception as error:
                failed[name] = _why(error)
        reading = {
            **head, "total_bytes": total, "used_bytes": used,
            "free_bytes": None if total is None or used is None else total - used, "processes": processes,
        }  # fmt: skip
        return {**head, "up": True, "reason": None, "samples": rows, "failed": failed, "reading": reading}

    def _memory(self, handle: Any) -> tuple[int, int]:
        kind = self._a.AmdSmiMemoryType.VRAM
        return (
            int(self._a.amdsmi_get_gpu_memory_total(handle, kind)),
            int(self._a.amdsmi_get_gpu_memory_usage(handle, kind)),
        )

    def _processes(
        self, handle: Any, rows: list[Row], failed: dict[str, str], own: frozenset[int] | None
    ) -> list[dict[str, object]]:
        try:
            listed = self._a.amdsmi_get_gpu_process_list(handle)
            found = [(int(one["pid"]), int(one["memory_usage"]["vram_mem"]), str(one["name"])) for one in listed]
        except Exception as error:
            failed["processes"] = _why(error)
            return []
        rows.extend(process_rows([(pid, used) for pid, used, _ in found], own if pids_match() else None))
        return [{"pid": pid, "used_bytes": used, "name": name} for pid, used, name in found]

    def costs(self, repeat: int) -> dict[str, dict[str, float]]:
        """Not measured: no such card was at hand."""
        return {}

    def wait(self) -> dict[str, object] | None:
        """There are no events; None ends the waiting."""
        return None


class _NotTold(Exception):
    """The library holds no number."""


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NotTold("this card does not tell it")
    return value


def _code(error: BaseException) -> int | None:
    code = getattr(error, "err_code", None)
    return code if isinstance(code, int) else None


def _why(error: BaseException) -> str:
    return WORDS.get(_code(error) or 0) or _line(error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
