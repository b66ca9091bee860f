"""``probe gpu`` of a real launcher: the driver's own process, beside the server and not of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collect import GpuRounds, LauncherGpu, gpu_readings
from agent.model import NotMeasured
from tests.hardware.cards import value
from tests.hardware.fake_driver import FakeDriver
from tests.launch.harness import Factory, Launched, alive, until

Document = dict[str, object]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Factory]:
    factory = Factory(tmp_path)
    yield factory
    factory.clean()


async def measured(launched: Launched, **args: object) -> Document:
    """An answer with a reading of now; a busy machine may need a second look."""
    await launched.up()
    found: list[Document] = []

    async def asked() -> bool:
        answer = await launched.client.call("probe", name="gpu", **args)
        if answer["measured"] and answer["trouble"] is None:
            found.append(answer)
        return bool(found)

    await launched.wait_for(asked, 40)
    return found[0]


def driver_pids(launched: Launched) -> list[int]:
    """Children of the launcher that run the driver's program."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == launched.process.pid and b"driver.main()" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


async def test_the_answer_keeps_its_old_words_and_brings_samples(launch: Factory, driver: FakeDriver) -> None:
    driver.set({"used": 2000, "util": 30}, {})
    launched = launch(env=driver.environment(CUDA_VISIBLE_DEVICES="0"))
    answer = await measured(launched, costly=True)
    assert answer["available"] is True and answer["reason"] is None and answer["backend"] == "nvml"
    readings = gpu_readings(answer)
    assert not isinstance(readings, NotMeasured)
    assert [(one.index, one.used_bytes) for one in readings] == [(0, 2000 << 20)], "the server's own card alone"
    seen = await GpuRounds("s", LauncherGpu(launched.client)).read(0.0)
    assert value(seen, "gpu_utilization_ratio") == 0.3 and value(seen, "gpu_up") == 1
    cheap = await measured(launched, costly=False)
    assert isinstance(cheap["cards"], list) and "gpu_utilization_ratio" not in str(cheap["cards"])


async def test_evidence_asked_for_once_falls_back_on_nvidia_smi(launch: Factory, tmp_path: Path) -> None:
    program = tmp_path / "tools" / "nvidia-smi"
    program.parent.mkdir()
    called = tmp_path / "called"
    program.write_text(
        f"#!/bin/sh\necho x >>{called}\ncase \"$*\" in *query-gpu*) echo '0, GPU-a, H200, 100, 60, 40, 9.0';; esac\n"
    )
    program.chmod(0o755)
    empty = tmp_path / "empty"
    empty.mkdir()
    driver = FakeDriver(tmp_path / "state", empty)
    launched = launch(env=driver.environment(PATH=f"{program.parent}:{os.environ['PATH']}"))
    await launched.up()

    async def refused() -> bool:  # no driver here: known once its process has answered
        answer = await launched.client.call("probe", name="gpu", costly=False)
        trouble = answer["trouble"]
        return isinstance(trouble, dict) and trouble["kind"] == "library-missing"

    await launched.wait_for(refused, 40)
    await asyncio.sleep(0.3)
    before = called.read_text() if called.exists() else ""
    answer = await launched.client.call("probe", name="gpu", costly=True)
    assert answer["available"] is False and answer["gpus"] == []
    assert (called.read_text() if called.exists() else "") == before, "a round starts no nvidia-smi"
    answer = await launched.client.call("probe", name="gpu")
    readings = gpu_readings(answer)
    assert not isinstance(readings, NotMeasured) and readings[0].free_bytes == 40 << 20
    assert answer["trouble"] is not None and answer["cards"] == []


async def test_an_xid_is_an_event_at_once_and_a_count(launch: Factory, driver: FakeDriver) -> None:
    launched = launch(env=driver.environment())
    await measured(launched, costly=False)
    after = int(str((await launched.status())["event_seq"]))
    driver.xid(1, 79)
    event = await launched.event("xid", after)
    assert (event["gpu"], event["xid"]) == (1, 79) and str(event["at"]).endswith("Z")
    first = GpuRounds("s", LauncherGpu(launched.client))
    second = GpuRounds("s", LauncherGpu(launched.client))  # a watcher that began anew
    for rounds in (first, second):
        seen = await rounds.read(0.0)
        assert value(seen, "gpu_xid_errors_total", 1, name="79") == 1
        assert [one.number for one in seen.xids] == [79]
        assert (await rounds.read(1.0)).xids == ()


async def test_the_drivers_process_is_none_of_the_servers(launch: Factory, driver: FakeDriver) -> None:
    launched = launch("--grandchild", "group", env=driver.environment())
    await launched.event("started")
    await measured(launched, costly=False)
    (pid,) = driver_pids(launched)
    processes = await launched.client.call("probe", name="processes")
    listed = [one for key in ("processes", "leftovers") if isinstance(many := processes[key], list) for one in many]
    assert listed and pid not in {one["pid"] for one in listed}
    await launched.client.call("end-orphans")
    seq = int(str((await launched.status())["event_seq"]))
    await launched.client.call("restart", reason="again")
    await launched.event("started", after=seq)
    assert driver_pids(launched) == [pid]


async def test_it_ends_with_the_launcher_even_while_it_hangs(launch: Factory, driver: FakeDriver) -> None:
    launched = launch(env=driver.environment())
    await measured(launched, costly=False)
    (pid,) = driver_pids(launched)
    driver.head(hang=1)
    asking = asyncio.create_task(launched.client.call("probe", name="gpu", costly=False))
    await asyncio.sleep(0.5)
    launched.process.send_signal(signal.SIGKILL)
    await until(lambda: not alive(pid))
    await asyncio.gather(asking, return_exceptions=True)


async def test_it_ends_with_a_launcher_that_is_stopped(launch: Factory, driver: FakeDriver) -> None:
    launched = launch(env=driver.environment())
    await launched.event("started")
    await measured(launched, costly=False)
    (pid,) = driver_pids(launched)
    launched.process.terminate()
    await launched.ended()
    await until(lambda: not alive(pid))


async def test_a_hanging_driver_holds_no_other_verb(launch: Factory, driver: FakeDriver) -> None:
    launched = launch(env=driver.environment())
    await measured(launched, costly=False)
    driver.head(hang=1)
    asking = asyncio.create_task(launched.client.call("probe", name="gpu", costly=True))
    took = []
    while not asking.done():
        begun = time.monotonic()
        await launched.status()
        took.append(time.monotonic() - begun)
        await asyncio.sleep(0.05)
    assert len(took) >= 5 and sorted(took)[len(took) // 2] < 0.5
    answer = await asking
    trouble = answer["trouble"]
    assert isinstance(trouble, dict) and trouble["kind"] in ("slow", "hang")
