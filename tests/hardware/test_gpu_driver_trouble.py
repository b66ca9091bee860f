"""A driver that is missing, changed, slow, hung or dead: said in plain words, and recovered from."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest

import agent.launch.driverlink as driverlink
from agent.collect import GpuRounds, GpuSet, LocalGpu
from agent.errors import LauncherError
from agent.launch import Cards, start_here
from tests.hardware.cards import Reader, process, reasons, value
from tests.hardware.fake_driver import FakeDriver
from tests.launch.harness import alive, until

Made = Callable[[FakeDriver], Reader]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    """Makes readers, and ends what they started."""
    readers: list[Reader] = []

    def make(driver: FakeDriver) -> Reader:
        proc = process(tmp_path / "proc", environment={})
        readers.append(Reader(LocalGpu(proc=proc, environment=driver.environment())))
        return readers[-1]

    yield make
    for reader in readers:
        reader.rounds.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driverlink, "BACKOFF_SECONDS", (0.1,))


async def test_without_a_driver_the_cards_are_unknown_until_one_is_there(
    made: Made, tmp_path: Path, library: Path
) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    driver = FakeDriver(tmp_path / "state", folder)
    driver.set({})
    reader = made(driver)
    seen = await reader.until(lambda one: "libnvidia-ml.so.1 is not here" in reasons(one))
    assert seen.samples == () and seen.readings is None and seen.busy is None
    (folder / "libnvidia-ml.so.1").symlink_to(library / "libnvidia-ml.so.1")
    assert value(await reader.answered(), "gpu_up") == 1


async def test_a_driver_that_is_not_loaded_is_named(made: Made, driver: FakeDriver) -> None:
    driver.set(init=9)
    reader = made(driver)
    await reader.until(lambda one: "the NVIDIA driver is not loaded" in reasons(one))
    driver.set({})
    assert value(await reader.answered(), "gpu_up") == 1


async def test_a_driver_changed_under_a_running_system_is_named_and_found_again(made: Made, driver: FakeDriver) -> None:
    reader = made(driver)
    await reader.answered()
    first = reader.source.driver_pid
    driver.head(fails=18, init=18, version="590.10")
    seen = await reader.until(lambda one: "of different versions" in reasons(one))
    assert seen.samples == (), "nothing old is shown"
    driver.set({}, version="590.10")
    seen = await reader.answered()
    assert seen.driver == "590.10" and value(seen, "gpu_up") == 1
    assert reader.source.driver_pid != first, "a loaded library fits its own driver alone"


async def test_a_user_who_may_not_ask_is_told_so(made: Made, driver: FakeDriver) -> None:
    driver.set(init=4)
    await made(driver).until(lambda one: "this user may not ask the NVIDIA driver" in reasons(one))


async def test_a_call_of_two_seconds_delays_no_round(
    made: Made, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = made(driver)
    await reader.answered()
    driver.head(delay_ms=2000)
    ticks = 0

    async def beat() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    beating = asyncio.create_task(beat())
    begun = time.monotonic()
    seen = await reader.read()
    took, beats = time.monotonic() - begun, ticks
    beating.cancel()
    assert "has not answered" in reasons(seen) and "old" in reasons(seen)
    assert beats >= 10, "the loop went on"
    assert driverlink.ANSWER_SECONDS <= took < 20
    assert value(seen, "gpu_temperature_celsius") == 41, "of the round before, with its age"
    assert seen.busy is not None and seen.age_seconds is not None and seen.age_seconds >= driverlink.ANSWER_SECONDS
    driver.head(delay_ms=0)
    assert not (await reader.until(lambda one: not one.not_measured)).not_measured


async def test_a_driver_that_hangs_for_ever_is_left_and_asked_anew(
    made: Made, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = made(driver)
    await reader.answered()
    hung = reader.source.driver_pid
    assert hung is not None
    monkeypatch.setattr(driverlink, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(driverlink, "HANG_SECONDS", 0.6)
    driver.head(hang=1)
    seen = await reader.until(lambda one: "its process was killed" in reasons(one))
    assert seen.samples == () and seen.readings is None
    await until(lambda: not alive(hung))
    monkeypatch.undo()
    driver.head(hang=0)
    assert value(await reader.answered(), "gpu_up") == 1


async def test_a_killed_process_is_replaced(made: Made, driver: FakeDriver) -> None:
    reader = made(driver)
    await reader.answered()
    pid = reader.source.driver_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    seen = await reader.until(lambda one: reader.source.driver_pid not in (None, pid) and value(one, "gpu_up") == 1)
    assert not seen.not_measured


async def test_the_count_of_xids_outlives_the_process(made: Made, driver: FakeDriver) -> None:
    reader = made(driver)
    await reader.answered()
    driver.xid(0, 48)
    await reader.until(lambda one: value(one, "gpu_xid_errors_total", name="48") == 1)
    pid = reader.source.driver_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await reader.until(lambda one: reader.source.driver_pid not in (None, pid) and one.age_seconds is not None)
    driver.xid(0, 48)
    await reader.until(lambda one: value(one, "gpu_xid_errors_total", name="48") == 2)


async def _cards(code: str, tmp_path: Path) -> Mapping[str, object]:
    """The account where the driver's process is this program."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n")
    program.chmod(0o755)
    cards = Cards(start_here, lambda: [str(program)], lambda: dict(os.environ))
    try:
        return await cards.read(costly=True, own=None)
    finally:
        cards.close()


@pytest.mark.parametrize(
    "code",
    [
        "for line in sys.stdin: print('{\\x22id\\x22: 1, ', flush=True); sys.exit()",
        "for line in sys.stdin: print('\\0' * 70000 + '\\n[1]\\n7\\nnull', flush=True); sys.exit()",
        "for line in sys.stdin: sys.stdout.write('x' * 5000000); sys.exit()",
        "sys.exit(3)",
    ],
)
async def test_nonsense_of_the_process_is_no_reading(code: str, tmp_path: Path) -> None:
    answer = await _cards(code, tmp_path)
    trouble = answer["trouble"]
    assert isinstance(trouble, dict) and trouble["kind"] in ("died", "slow")
    assert answer["cards"] == [] and answer["measured"] is False


async def test_without_any_binding_it_says_so(tmp_path: Path) -> None:
    """A Python of its own has neither pynvml nor vLLM nor amdsmi."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o755)
    cards = Cards(start_here, lambda: [str(program)], lambda: {})
    try:
        deadline = time.monotonic() + 40
        while True:
            trouble = (await cards.read(costly=True, own=None))["trouble"]
            assert isinstance(trouble, dict)
            if trouble["kind"] == "no-binding":
                break
            assert time.monotonic() < deadline, trouble
        assert trouble["reason"] == "no NVML binding: neither nvidia-ml-py nor vLLM is installed"
    finally:
        cards.close()


async def test_the_next_python_is_tried_where_one_has_no_binding_or_is_not_there(
    tmp_path: Path, driver: FakeDriver
) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    pythons: Sequence[str] = [str(tmp_path / "none"), str(bare), sys.executable]
    cards = Cards(start_here, lambda: pythons, driver.environment)
    try:
        deadline = time.monotonic() + 40
        while not (await cards.read(costly=True, own=None))["measured"]:
            assert time.monotonic() < deadline
    finally:
        cards.close()


async def test_vllms_own_copy_of_the_binding_is_found(tmp_path: Path, driver: FakeDriver) -> None:
    import pynvml

    packages = tmp_path / "packages"
    copy = packages / "vllm" / "third_party" / "pynvml.py"
    copy.parent.mkdir(parents=True)
    (packages / "vllm" / "__init__.py").write_text("raise SystemExit('vLLM is never imported for this')\n")
    copy.write_text(Path(pynvml.__file__).read_text())
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    environment = driver.environment(PYTHONPATH=str(packages))
    cards = Cards(start_here, lambda: [str(program)], lambda: environment)
    try:
        deadline = time.monotonic() + 40
        while (answer := await cards.read(costly=True, own=None))["measured"] is False:
            assert time.monotonic() < deadline, answer
        assert answer["backend"] == "nvml"
    finally:
        cards.close()


async def test_a_module_of_the_working_directory_is_never_loaded(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "pynvml", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    cards = Cards(start_here, lambda: [sys.executable], driver.environment)
    try:
        deadline = time.monotonic() + 40
        while not (await cards.read(costly=True, own=None))["measured"]:
            assert time.monotonic() < deadline
    finally:
        cards.close()


class Away:
    """A launcher that does not answer."""

    async def facts(self, *, costly: bool, pids: Sequence[int]) -> Mapping[str, object]:
        raise LauncherError("no launcher answers", code="unreachable")

    def close(self) -> None: ...


async def test_a_launcher_that_is_away_is_a_reason() -> None:
    seen: GpuSet = await GpuRounds("s", Away()).read(1.0)
    assert seen.samples == () and reasons(seen) == "gpu: no launcher answers"


def answer(**changes: object) -> dict[str, object]:
    card = {"index": 0, "uuid": "GPU-a", "up": True, "reason": None, "failed": {}, "reading": None,
            "samples": [["gpu_power_watts", {}, 5]]}  # fmt: skip
    whole: dict[str, object] = {
        "measured": True, "costly": True, "age_seconds": 0.0, "xids": {"counts": [], "recent": []}, "trouble": None,
        "cards": [{**card, **changes}],
    }  # fmt: skip
    return whole


class Says:
    """A source with one answer."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self.document = document

    async def facts(self, *, costly: bool, pids: Sequence[int]) -> Mapping[str, object]:
        return self.document

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "row",
    [
        ["gpu_power_watts", {}, "5"], ["gpu_power_watts", {}, True], ["gpu_power_watts", {}, -1], 7,
        ["gpu_power_watts", {}, float("nan")], ["gpu_power_watts", {}, float("inf")], ["gpu_power_watts", {}],
        ["gpu_power_watts", {"server": "other"}, 5], ["evil", {}, 5], ["gpu_clock_hertz", {}, 5],
        ["gpu_clock_hertz", {"name": "x" * 65}, 5], ["gpu_clock_hertz", {"name": 7}, 5], ["gpu_up", {}, 0],
    ],
)  # fmt: skip
async def test_what_is_no_figure_of_a_card_becomes_no_sample(row: object) -> None:
    seen = await GpuRounds("s", Says(answer(samples=[row]))).read(1.0)
    assert [one.name for one in seen.samples] == ["vllm_agent_gpu_up"]


@pytest.mark.parametrize("changes", [{"index": "0"}, {"uuid": None}, {"up": "yes"}, {"samples": {}}, {"failed": []}])
async def test_an_answer_of_another_shape_is_a_reason(changes: Mapping[str, object]) -> None:
    seen = await GpuRounds("s", Says(answer(**changes))).read(1.0)
    assert seen.samples == () and "could not be read" in reasons(seen)


async def test_a_launcher_of_an_older_release_is_a_reason() -> None:
    seen = await GpuRounds("s", Says({"available": True, "reason": None, "gpus": []})).read(1.0)
    assert seen.samples == () and "update it together with the watcher" in reasons(seen)


async def test_a_server_that_is_not_on_this_host_has_no_cards_here(driver: FakeDriver) -> None:
    source = LocalGpu(environment=driver.environment())
    seen = await GpuRounds("s", source).read(1.0)
    assert seen.samples == () and source.driver_pid is None
    assert "not seen on this host" in reasons(seen)
