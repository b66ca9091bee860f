"""Cards of AMD under the same names, by a stand-in of the ``amdsmi`` module (no such card was at hand)."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from agent.collect import GpuRounds, GpuSet
from agent.launch import Cards, start_here
from agent.series import own_metrics
from tests.hardware.cards import names, reasons, value

# What the real module gives for an MI300X; FAULT changes it. Names and shapes are those of amdsmi 7.
MODULE = """
import enum, os
FAULT = os.environ.get("AMD_FAULT", "")
if FAULT == "import":
    raise KeyError("libamd_smi.so")
class AmdSmiMemoryType(enum.IntEnum): VRAM = 0
class AmdSmiTemperatureType(enum.IntEnum): EDGE = 0; HOTSPOT = 1; VRAM = 2
class AmdSmiTemperatureMetric(enum.IntEnum): CURRENT = 0
class AmdSmiClkType(enum.IntEnum): GFX = 0; MEM = 4
class AmdSmiLibraryException(Exception):
    def __init__(self, err_code):
        self.err_code = err_code
        super().__init__(f"Error code:\\n\\t{err_code}")
def check(name):
    fault, _, code = FAULT.partition(":")
    if fault == name:
        raise AmdSmiLibraryException(int(code))
def amdsmi_init(): check("init"); print("amdsmi prints this")
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [] if FAULT == "none" else ["a", "b"]
def amdsmi_get_gpu_device_uuid(h): return f"uuid-{h}"
def amdsmi_get_gpu_asic_info(h): return {"market_name": "AMD Instinct MI300X"}
def amdsmi_get_gpu_memory_total(h, kind): check("memory"); return 192 << 30
def amdsmi_get_gpu_memory_usage(h, kind): return 64 << 30
def amdsmi_get_gpu_activity(h): return {"gfx_activity": 80, "umc_activity": 40, "mm_activity": "N/A"}
def amdsmi_get_power_info(h):
    return {"current_socket_power": 600, "average_socket_power": "N/A", "power_limit": 750}
def amdsmi_get_energy_count(h): return {"energy_accumulator": 2000000, "counter_resolution": 15.5, "timestamp": 1}
def amdsmi_get_temp_metric(h, kind, metric): return 71 if kind == AmdSmiTemperatureType.HOTSPOT else 55
def amdsmi_get_clock_info(h, kind): check("clocks"); return {"clk": 2100 if kind == AmdSmiClkType.GFX else 1300}
def amdsmi_get_gpu_total_ecc_count(h): return {"correctable_count": 4, "uncorrectable_count": 1}
def amdsmi_get_gpu_pci_replay_counter(h): return "N/A"
def amdsmi_get_gpu_process_list(h):
    return [{"pid": 10, "name": "vllm", "mem": 5, "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 5}}]
"""


class Source:
    """The driver's process with the stand-in on its path, as the launcher would start it."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        (folder / "amdsmi.py").write_text(MODULE)
        program = folder / "python"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        program.chmod(0o755)
        environment = {"PYTHONPATH": str(folder), **env}
        self._cards = Cards(start_here, lambda: [str(program)], lambda: environment)

    async def facts(self, *, costly: bool, pids: object) -> Mapping[str, object]:
        return await self._cards.read(costly=costly, own=None)

    def close(self) -> None:
        self._cards.close()


@pytest.fixture
async def rounds(tmp_path: Path) -> AsyncIterator[Callable[..., GpuRounds]]:
    made: list[GpuRounds] = []

    def make(**env: str) -> GpuRounds:
        made.append(GpuRounds("s", Source(tmp_path, env)))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def until(rounds: GpuRounds, condition: Callable[[GpuSet], object]) -> GpuSet:
    deadline = time.monotonic() + 40
    while not condition(seen := await rounds.read(time.monotonic(), asked=True)):
        assert time.monotonic() < deadline, seen
    return seen


def told(seen: GpuSet) -> bool:
    return bool(seen.samples)


async def test_amds_figures_have_the_same_names_and_units(rounds: Callable[..., GpuRounds]) -> None:
    seen = await until(rounds(), told)
    assert seen.backend == "amdsmi" and seen.busy is True
    assert value(seen, "gpu_up") == value(seen, "gpu_up", 1) == 1
    assert value(seen, "gpu_utilization_ratio") == 0.8 and value(seen, "gpu_memory_utilization_ratio") == 0.4
    assert value(seen, "gpu_memory_total_bytes") == 192 << 30 and value(seen, "gpu_memory_free_bytes") == 128 << 30
    assert value(seen, "gpu_power_watts") == 600 and value(seen, "gpu_power_limit_watts") == 750
    assert value(seen, "gpu_energy_joules_total") == 31
    assert value(seen, "gpu_temperature_celsius") == 71 and value(seen, "gpu_memory_temperature_celsius") == 55
    assert value(seen, "gpu_clock_hertz", name="sm") == 2.1e9 and value(seen, "gpu_clock_hertz", name="memory") == 1.3e9
    assert value(seen, "gpu_ecc_errors_total", **{"class": "uncorrected"}) == 1
    published = own_metrics()
    for one in seen.samples:
        assert set(one.labels) == set(published[one.name].labels)


async def test_what_amd_does_not_tell_is_said(rounds: Callable[..., GpuRounds]) -> None:
    seen = await until(rounds(AMD_FAULT="clocks:2"), told)
    assert not {"gpu_clock_hertz", "gpu_pcie_replays_total", "gpu_clock_event", "gpu_remap_pending"} & names(seen)
    lines = reasons(seen)
    assert "Xid events: AMD's driver has no Xid events" in lines
    assert "gpu 0 clocks: this card does not tell it" in lines and "gpu 0 pcie replays" in lines
    assert "gpu 0 clock event: AMD's driver does not tell it" in lines


async def test_only_the_servers_own_cards_count(rounds: Callable[..., GpuRounds]) -> None:
    seen = await until(rounds(HIP_VISIBLE_DEVICES="1"), told)
    assert {one.labels["uuid"] for one in seen.samples} == {"uuid-b"}


async def test_a_card_that_is_gone_is_down(rounds: Callable[..., GpuRounds]) -> None:
    seen = await until(rounds(AMD_FAULT="memory:31"), told)
    assert [one.value for one in seen.samples] == [0, 0] and "the GPU is no longer there" in reasons(seen)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("import", "libamd_smi.so is not here"),
        ("init:34", "amdsmi cannot be used"),
        ("none", "amdsmi sees no AMD card"),
    ],
)
async def test_a_missing_driver_is_named(rounds: Callable[..., GpuRounds], fault: str, words: str) -> None:
    seen = await until(rounds(AMD_FAULT=fault), lambda one: words in reasons(one))
    assert seen.samples == () and seen.readings is None
