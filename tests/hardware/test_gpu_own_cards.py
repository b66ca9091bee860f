"""Which cards are the server's: indices, UUIDs, MIG instances, the container runtime's list, guesses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.collect import LocalGpu
from agent.launch.selection import Card, Instance, choose, choose_amd
from tests.hardware.cards import SERVER, Reader, process, reasons, value
from tests.hardware.fake_driver import FakeDriver

PLAIN = (Card(0, "GPU-aaaa1", "H200"), Card(1, "GPU-aabb2", "H200"), Card(2, "GPU-cccc3", "H200"))
PARTS = (
    Card(0, "GPU-aaaa1", "H200", (Instance("MIG-11", 1, 0), Instance("MIG-12", 2, 0))),
    Card(1, "GPU-bbbb2", "H200", (Instance("MIG-21", 1, 0),)),
)


def chosen(cards: tuple[Card, ...], **env: str) -> list[str]:
    return [one.uuid for one in choose(cards, env)[0]]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("0", ["GPU-aaaa1"]), ("2,0", ["GPU-cccc3", "GPU-aaaa1"]), (" 1 , 2 ", ["GPU-aabb2", "GPU-cccc3"]),
        ("GPU-aabb2", ["GPU-aabb2"]), ("GPU-cc", ["GPU-cccc3"]), ("GPU-aa", []), ("gpu-CCCC3", ["GPU-cccc3"]),
        ("", []), ("-1", []), ("1,-1,0", ["GPU-aabb2"]), ("7", []), ("1,7,0", ["GPU-aabb2"]),
        ("1,1", ["GPU-aabb2"]), ("NoDevFiles", []), (",0", []),
    ],
)  # fmt: skip
def test_cuda_stops_at_the_first_entry_that_it_does_not_know(setting: str, expected: list[str]) -> None:
    assert chosen(PLAIN, CUDA_VISIBLE_DEVICES=setting) == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("MIG-12", ["MIG-12"]), ("mig-21", ["MIG-21"]), ("MIG-GPU-aaaa1/2/0", ["MIG-12"]), ("0", ["MIG-11"]),
        ("MIG-1", []), ("MIG-GPU-aaaa1/9/0", []), ("1,MIG-12", ["MIG-21", "MIG-12"]),
    ],
)  # fmt: skip
def test_instances_are_named_by_both_spellings(setting: str, expected: list[str]) -> None:
    assert chosen(PARTS, CUDA_VISIBLE_DEVICES=setting) == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("all", 3), ("", 3), ("void", 3), ("none", 3), ("1", ["GPU-aabb2"]),
        ("GPU-cccc3,0", ["GPU-cccc3", "GPU-aaaa1"]), ("0,1,2", 3), ("4,5,6", 3), ("9", 3),
    ],
)  # fmt: skip
def test_the_runtimes_list_counts_where_more_is_visible(setting: str, expected: list[str] | int) -> None:
    found = chosen(PLAIN, NVIDIA_VISIBLE_DEVICES=setting)
    assert len(found) == expected if isinstance(expected, int) else found == expected


def test_without_any_variable_all_are_the_servers_instances_too() -> None:
    assert chosen(PLAIN) == ["GPU-aaaa1", "GPU-aabb2", "GPU-cccc3"]
    assert chosen(PARTS) == ["MIG-11", "MIG-12", "MIG-21"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, [0, 1, 2]), ({"ROCR_VISIBLE_DEVICES": "2,1"}, [2, 1]), ({"HIP_VISIBLE_DEVICES": "0"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [1]), ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0]), ({"ROCR_VISIBLE_DEVICES": "GPU-cc"}, [2]),
        ({"HIP_VISIBLE_DEVICES": ""}, []), ({"HIP_VISIBLE_DEVICES": "5"}, []),
    ],
)  # fmt: skip
def test_roc_counts_among_what_the_first_variable_left(env: Mapping[str, str], expected: list[int]) -> None:
    assert [one.card.index for one in choose_amd(PLAIN, env)] == expected


def test_a_choice_that_may_be_wrong_is_said() -> None:
    mixed = (*PLAIN, Card(3, "GPU-dd", "T4"))
    assert "CUDA_DEVICE_ORDER" in str(choose(mixed, {"CUDA_VISIBLE_DEVICES": "1"})[1])
    assert choose(mixed, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[1] is None
    assert choose(PLAIN, {"CUDA_VISIBLE_DEVICES": "1"})[1] is None
    assert "names GPU-zz" in str(choose(PLAIN, {"CUDA_VISIBLE_DEVICES": "0,GPU-zz"})[1])
    assert choose(PLAIN, {"CUDA_VISIBLE_DEVICES": "-1"})[1] is None


def reader(tmp_path: Path, driver: FakeDriver, environment: Mapping[str, str] | None) -> Reader:
    proc = process(tmp_path / "proc", environment=environment)
    return Reader(LocalGpu(proc=proc, environment=driver.environment()))


async def test_the_servers_environment_chooses_its_card(tmp_path: Path, driver: FakeDriver) -> None:
    one = reader(tmp_path, driver, {"CUDA_VISIBLE_DEVICES": "1"})
    try:
        seen = await one.answered()
        assert {sample.labels["gpu"] for sample in seen.samples} == {"1"} and not seen.not_measured
        driver.xid(0, 31)  # another tenant's
        driver.xid(1, 43)
        seen = await one.until(lambda now: value(now, "gpu_xid_errors_total", 1, name="43"))
        assert value(seen, "gpu_xid_errors_total", 0, name="31") is None
    finally:
        one.rounds.close()


async def test_a_server_without_a_card_has_none(tmp_path: Path, driver: FakeDriver) -> None:
    one = reader(tmp_path, driver, {"CUDA_VISIBLE_DEVICES": ""})
    try:
        seen = await one.until(lambda now: now.readings is not None)
        assert seen.readings == () and seen.samples == () and seen.busy is None
    finally:
        one.rounds.close()


async def test_an_environment_that_cannot_be_read_is_said(tmp_path: Path, driver: FakeDriver) -> None:
    one = reader(tmp_path, driver, None)
    try:
        seen = await one.answered()
        assert {sample.labels["gpu"] for sample in seen.samples} == {"0", "1"}
        assert "all cards are shown" in reasons(seen)
    finally:
        one.rounds.close()


async def test_a_server_that_began_anew_with_other_cards_is_followed(tmp_path: Path, driver: FakeDriver) -> None:
    one = reader(tmp_path, driver, {"CUDA_VISIBLE_DEVICES": "1"})
    try:
        assert value(await one.answered(), "gpu_up", 1) == 1
        process(tmp_path / "proc", SERVER + 1, environment={"CUDA_VISIBLE_DEVICES": "0"})
        one.pids = [SERVER + 1]
        seen = await one.answered()
        assert {sample.labels["gpu"] for sample in seen.samples} == {"0"}
    finally:
        one.rounds.close()


async def test_an_instance_has_its_own_memory_and_its_own_xids(tmp_path: Path, driver: FakeDriver) -> None:
    driver.set({"mig": 2, "total": 70_000, "used": 1000, "util": 90}, {})
    uuid = "MIG-00000000-0002-0000-0000-000000000000"
    one = reader(tmp_path, driver, {"CUDA_VISIBLE_DEVICES": uuid})
    try:
        seen = await one.answered()
        assert {(sample.labels["gpu"], sample.labels["uuid"]) for sample in seen.samples} == {("0", uuid)}
        assert value(seen, "gpu_memory_total_bytes") == (70_000 << 20) // 7
        assert value(seen, "gpu_temperature_celsius") == 41, "the card's own"
        assert "gpu 0 utilization: this card does not tell it" in reasons(seen) and seen.busy is None
        driver.xid(0, 31, instance=1)  # of the other instance
        driver.xid(0, 43, instance=2)
        driver.xid(0, 48)  # of the whole card
        seen = await one.until(lambda now: value(now, "gpu_xid_errors_total", name="48"))
        assert value(seen, "gpu_xid_errors_total", name="43") == 1
        assert value(seen, "gpu_xid_errors_total", name="31") is None
    finally:
        one.rounds.close()
