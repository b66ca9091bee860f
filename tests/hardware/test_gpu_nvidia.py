"""Cards of NVIDIA, read by the real binding on a driver stand-in: figures, faults, Xids, loss and return."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import agent.launch.nvmlfields as nvmlfields
from agent.collect import GpuSet, LocalGpu
from agent.launch.nvmlfields import process_rows
from agent.series import own_metrics
from tests.hardware.cards import Reader, names, process, reasons, value
from tests.hardware.fake_driver import FakeDriver

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
async def reader(tmp_path: Path, driver: FakeDriver) -> AsyncIterator[Reader]:
    made = Reader(LocalGpu(proc=process(tmp_path / "proc", environment={}), environment=driver.environment()))
    yield made
    made.rounds.close()


async def test_two_cards_are_told_apart_and_in_base_units(reader: Reader, driver: FakeDriver) -> None:
    driver.card(0, used=50_000, util=87, memutil=35, power=650_250, limit=700_000, temp=66, memtemp=81, sm=1755)
    driver.card(1, used=10)
    seen = await reader.answered()
    assert value(seen, "gpu_up") == value(seen, "gpu_up", 1) == 1
    assert value(seen, "gpu_utilization_ratio") == 0.87 and value(seen, "gpu_memory_utilization_ratio") == 0.35
    assert value(seen, "gpu_power_watts") == 650.25 and value(seen, "gpu_power_limit_watts") == 700
    assert value(seen, "gpu_temperature_celsius") == 66 and value(seen, "gpu_memory_temperature_celsius") == 81
    assert value(seen, "gpu_clock_hertz", name="sm") == 1.755e9
    assert value(seen, "gpu_clock_hertz", name="memory") == 3.201e9
    assert value(seen, "gpu_energy_joules_total") == 5000
    total, free = 143_771 * MIB, (143_771 - 600 - 50_000) * MIB
    assert value(seen, "gpu_memory_total_bytes") == total and value(seen, "gpu_memory_free_bytes") == free
    assert value(seen, "gpu_memory_used_bytes") == 50_000 * MIB and value(seen, "gpu_memory_used_bytes", 1) == 10 * MIB
    assert value(seen, "gpu_memory_reserved_bytes") == 600 * MIB
    assert seen.busy is True and seen.backend == "nvml" and seen.driver == "580.95.05" and not seen.not_measured
    assert seen.readings is not None and [one.index for one in seen.readings] == [0, 1]
    assert seen.readings[0].free_bytes == free and seen.readings[0].compute_capability == "9.0"


async def test_every_sample_is_a_published_series(reader: Reader, driver: FakeDriver) -> None:
    driver.card(0, processes=1)
    await reader.answered()
    driver.xid(0, 31)
    seen = await reader.until(lambda one: value(one, "gpu_xid_errors_total", name="31"))
    published = {name: metric for name, metric in own_metrics().items() if metric.source == "gpu"}
    shown = {one.name: set(one.labels) for one in seen.samples}
    assert set(shown) == set(published)
    for name, labels in shown.items():
        assert labels == set(published[name].labels)


async def test_what_holds_the_clocks_down_is_named(reader: Reader, driver: FakeDriver) -> None:
    driver.card(0, events="0x44")
    seen = await reader.answered()
    active = {one.labels["reason"] for one in seen.samples if one.name.endswith("clock_event") and one.value == 1
              and one.labels["gpu"] == "0"}  # fmt: skip
    assert active == {"sw_power_cap", "hw_thermal_slowdown"}
    driver.card(0, events="0x0")
    seen = await reader.answered()
    assert value(seen, "gpu_clock_event", reason="hw_thermal_slowdown") == 0


async def test_errors_of_the_memory_are_counted_by_kind(reader: Reader, driver: FakeDriver) -> None:
    driver.card(1, corrected=12, uncorrected=3, rows=4, bad_rows=2, pending=1, remap_failed=1, replays=9)
    seen = await reader.answered()
    kinds = [("gpu_ecc_errors_total", "corrected", 12), ("gpu_ecc_errors_total", "uncorrected", 3),
             ("gpu_remapped_rows", "correctable", 4), ("gpu_remapped_rows", "uncorrectable", 2)]  # fmt: skip
    for name, kind, count in kinds:
        assert value(seen, name, 1, **{"class": kind}) == count and value(seen, name, 0, **{"class": kind}) == 0
    assert value(seen, "gpu_remap_pending", 1) == value(seen, "gpu_remap_failed", 1) == 1
    assert value(seen, "gpu_pcie_replays_total", 1) == 9


async def test_what_a_card_does_not_tell_costs_that_field_alone(reader: Reader, driver: FakeDriver) -> None:
    driver.card(0, ecc_off=1)
    seen = await reader.answered()
    assert "gpu_ecc_errors_total" not in names(seen) and "gpu_ecc_errors_total" in names(seen, 1)
    assert "gpu 0 ecc uncorrected: this card does not tell it" in reasons(seen)
    assert value(seen, "gpu_temperature_celsius") == 41


async def test_an_old_driver_tells_what_it_knows(tmp_path: Path, old_library: Path) -> None:
    driver = FakeDriver(tmp_path / "state", old_library)
    driver.set({"used": 500, "events": "0x40"})
    one = LocalGpu(proc=process(tmp_path / "proc", environment={}), environment=driver.environment())
    reader = Reader(one)
    seen = await reader.answered()
    assert value(seen, "gpu_memory_used_bytes") == 500 * MIB and "gpu_memory_reserved_bytes" not in names(seen)
    assert value(seen, "gpu_clock_event", reason="hw_thermal_slowdown") == 1, "under its old name"
    assert not {"gpu_energy_joules_total", "gpu_remapped_rows"} & names(seen)
    told = reasons(seen)
    assert "gpu 0 energy: this driver is too old to tell it" in told and "gpu 0 remapped rows" in told
    assert "Xid events: this driver is too old to tell it" in told
    one.close()


async def test_xids_are_counted_and_told_once_with_their_time(reader: Reader, driver: FakeDriver) -> None:
    driver.xid(0, 43)  # before anybody listened
    assert (await reader.answered()).xids == ()
    driver.xid(1, 94)
    driver.xid(1, 94)
    driver.xid(0, 13)
    told: list[tuple[int, int]] = []

    def three(seen: GpuSet) -> bool:
        told.extend((one.gpu, one.number) for one in seen.xids)
        return len(told) >= 3

    seen = await reader.until(three)
    assert sorted(told) == [(0, 13), (1, 94), (1, 94)]
    assert value(seen, "gpu_xid_errors_total", 1, name="94") == 2
    assert value(seen, "gpu_xid_errors_total", 0, name="13") == 1
    first = value(seen, "gpu_xid_last_timestamp_seconds", 1, name="94")
    assert (await reader.answered()).xids == ()
    driver.xid(1, 94)
    again = await reader.until(lambda one: value(one, "gpu_xid_errors_total", 1, name="94") == 3)
    later = value(again, "gpu_xid_last_timestamp_seconds", 1, name="94")
    assert first is not None and later is not None and later > first


async def test_a_lost_card_is_down_and_shows_nothing_old(
    reader: Reader, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reader.answered()
    driver.card(1, fails=15)
    driver.xid(1, 79)
    seen = await reader.until(lambda one: value(one, "gpu_up", 1) == 0)
    seen = await reader.until(lambda one: value(one, "gpu_xid_errors_total", 1, name="79"))
    assert names(seen, 1) == {"gpu_up", "gpu_xid_errors_total", "gpu_xid_last_timestamp_seconds"}
    assert value(seen, "gpu_up") == 1 and value(seen, "gpu_temperature_celsius") == 41
    assert "gpu 1: the GPU is lost" in reasons(seen)
    assert seen.readings is not None and [one.index for one in seen.readings] == [0]
    assert seen.busy is None, "the lost one may be the one that works"
    driver.card(1, fails=0, temp=33)
    seen = await reader.until(lambda one: value(one, "gpu_up", 1) == 1)
    assert value(seen, "gpu_temperature_celsius", 1) == 33 and not seen.not_measured


async def test_a_card_that_fell_off_the_list_stays_down(reader: Reader, driver: FakeDriver) -> None:
    driver.set({"uuid": "GPU-a"}, {"uuid": "GPU-b"})
    await reader.answered()
    driver.card(1, fails=15)
    await reader.until(lambda one: value(one, "gpu_up", 1) == 0)
    driver.set({"uuid": "GPU-a"})
    for _ in range(3):
        seen = await reader.until(lambda one: one.samples)
        assert value(seen, "gpu_up", 1) == 0


async def test_costly_figures_are_asked_seldom_and_kept_for_a_while(reader: Reader, driver: FakeDriver) -> None:
    driver.card(0, util=50)
    assert value(await reader.answered(), "gpu_utilization_ratio") == 0.5
    driver.card(0, util=60, temp=70)
    seen = await reader.until(lambda one: value(one, "gpu_temperature_celsius") == 70)
    driver.card(0, util=70, temp=71)
    seen = await reader.read(asked=False)
    while value(seen, "gpu_temperature_celsius") != 71:  # a busy machine
        seen = await reader.read(asked=False, after=0.0)
    assert value(seen, "gpu_utilization_ratio") == 0.6 and seen.busy is None
    seen = await reader.read(asked=False, after=31.0)
    while value(seen, "gpu_utilization_ratio") != 0.7:
        seen = await reader.read(asked=False, after=1.0)
    assert seen.busy is True


async def test_figures_that_are_too_old_are_gone(reader: Reader, driver: FakeDriver) -> None:
    await reader.answered()
    rounds = reader.rounds
    assert rounds._costly
    rounds._costly_at = reader.now + 5 - 100  # as if no costly round had an answer for so long

    class Cheap:
        async def facts(self, *, costly: bool, pids: object) -> dict[str, object]:
            return await reader.source._cards.read(costly=False, own=None)

        def close(self) -> None: ...

    rounds._source = Cheap()
    seen = await reader.until(lambda one: value(one, "gpu_temperature_celsius") is not None)
    assert "gpu_utilization_ratio" not in names(seen)


async def test_processes_are_classed_where_pids_can_be_matched(reader: Reader, driver: FakeDriver) -> None:
    driver.card(0, processes=2, pid=4242, used=1000)
    seen = await reader.answered()
    if nvmlfields.pids_match():
        assert value(seen, "gpu_processes", **{"class": "own"}) == 1
        assert value(seen, "gpu_process_memory_bytes", **{"class": "foreign"}) == 500 * MIB
    else:
        assert value(seen, "gpu_processes", **{"class": "unknown"}) == 2
    assert seen.readings is not None
    found = [(one.pid, one.name) for one in seen.readings[0].processes]
    assert found == [
        (4242, "process-4242"),
        (4243, "process-4243"),
    ]


def test_bytes_that_the_driver_hides_are_no_zero() -> None:
    rows = {(name, labels["class"]): count for name, labels, count in process_rows([(1, None), (2, 7)], frozenset({1}))}
    assert rows == {
        ("gpu_processes", "own"): 1, ("gpu_processes", "foreign"): 1, ("gpu_process_memory_bytes", "foreign"): 7,
    }  # fmt: skip
    rows = {(name, labels["class"]): count for name, labels, count in process_rows([(1, 5), (2, 7)], None)}
    assert rows == {("gpu_processes", "unknown"): 2, ("gpu_process_memory_bytes", "unknown"): 12}
