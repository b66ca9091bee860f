"""One round of the host: figures under their published names, and a reason for each that is missing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import agent.launch.hostfacts as hostfacts
from agent.collect import HostReader, HostReading, LauncherHost, LocalHost, host_reading
from agent.errors import LauncherError
from agent.launch import HostProbe, Subject
from agent.launch.space import Space
from agent.series import own_metrics
from tests.hardware.host_trees import Machine
from tests.launch.harness import Factory, free_port

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Time:
    """A clock that stands until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.host()
    made.mounted(2)
    made.member("/", 2)
    made.group2("/", current=800, max=1000, inactive=100, oom_kill=2)
    made.counted(lo=(1, 1), eth0=(11, 22))
    made.link("eth0", speed=1000, device=True)
    return made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no file system that hangs."""
    monkeypatch.setattr(hostfacts, "QUICK_LIMIT_SECONDS", 30.0)
    monkeypatch.setattr(hostfacts, "SPACE_LIMIT_SECONDS", 30.0)


def probe(machine: Machine, clock: Time | None = None) -> HostProbe:
    return HostProbe(clock or Time(), proc=machine.proc, sysfs=machine.sysfs)


async def look(one: HostProbe, *pids: int, **spaces: str) -> HostReading:
    for pid in pids:
        membership = one._proc / str(pid) / "cgroup"
        if membership.parent.is_dir() and not membership.exists():
            membership.write_text("0::/\n")
    return host_reading("chat", await one.read(lambda: Subject(pids=pids, spaces=spaces)))


def values(reading: HostReading) -> dict[str, float]:
    """By name without the prefix, and with the label ``name`` behind it."""
    assert all(one.labels["server"] == "chat" for one in reading.samples)
    return {
        " ".join(
            [one.name.removeprefix("vllm_agent_"), *([one.labels["name"]] if "name" in one.labels else [])]
        ): one.value
        for one in reading.samples
    }


def reasons(reading: HostReading) -> dict[str, str]:
    return {one.check: one.reason for one in reading.not_measured}


async def test_a_whole_round(machine: Machine) -> None:
    machine.process(10, user=100, system=20, threads=3, pages=10, fds=4, soft=1024)
    machine.process(11, name="a) strange (name", user=50, system=0, threads=2, pages=5, fds=9, soft=65536)
    reading = await look(probe(machine), 10, 11, tmp=str(machine.folder))
    seen = values(reading)
    assert seen["host_memory_total_bytes"] == 1000 * 1024
    assert seen["host_memory_available_bytes"] == 400 * 1024
    assert seen["host_cpu_seconds_total steal"] == 800 / TICK
    assert "host_cpu_seconds_total guest" not in seen
    assert seen["server_resident_memory_bytes"] == 15 * PAGE
    assert seen["server_threads"] == 5
    assert seen["server_cpu_seconds_total"] == pytest.approx(170 / TICK, abs=0.01)
    assert (seen["server_open_fds"], seen["server_max_fds"]) == (4, 1024)
    assert (seen["cgroup_memory_bytes"], seen["cgroup_memory_limit_bytes"]) == (700, 1000)
    assert seen["cgroup_oom_kills_total"] == 2
    assert (seen["network_receive_bytes_total eth0"], seen["network_transmit_bytes_total eth0"]) == (11, 22)
    assert seen["network_speed_bytes_per_second eth0"] == 125_000_000
    assert 0 <= seen["shm_free_bytes"] <= seen["shm_total_bytes"]
    assert 0 <= seen["disk_free_bytes tmp"] <= seen["disk_total_bytes tmp"]
    assert not reading.not_measured


async def test_every_sample_is_published_with_just_its_labels(machine: Machine) -> None:
    machine.process(10, fds=1)
    published = {name: metric for name, metric in own_metrics().items() if metric.source == "host"}
    reading = await look(probe(machine), 10, tmp=str(machine.folder))
    assert {one.name for one in reading.samples} == set(published)
    for one in reading.samples:
        assert set(one.labels) == set(published[one.name].labels)


async def test_processor_time_only_grows_also_when_a_worker_ends_or_its_pid_is_used_again(machine: Machine) -> None:
    one = probe(machine)

    async def spent(*pids: int) -> float:
        return round(values(await look(one, *pids))["server_cpu_seconds_total"] * TICK)

    machine.process(10, user=100, system=0)
    machine.process(11, user=1000, system=0)
    assert await spent(10, 11) == 1100
    machine.process(10, user=130, system=0)
    assert await spent(10) == 1130
    machine.process(11, user=7, system=0, started=99)
    assert await spent(10, 11) == 1137


async def test_processes_that_vanish_and_zombies_hold_nothing(machine: Machine) -> None:
    machine.process(10, pages=3, fds=2)
    machine.process(11, pages=9, state="Z")
    seen = values(await look(probe(machine), 10, 11, 4711))
    assert seen["server_resident_memory_bytes"] == 3 * PAGE
    assert seen["server_open_fds"] == 2


async def test_a_server_that_is_down_has_no_figures_and_a_reason_but_its_container_has(machine: Machine) -> None:
    reading = await look(probe(machine))
    seen = values(reading)
    assert not [name for name in seen if name.startswith("server_")]
    assert reasons(reading)["server_resident_memory_bytes"] == "no process of the server runs"
    assert seen["cgroup_oom_kills_total"] == 2


async def test_descriptors_of_the_process_that_is_nearest_to_its_limit(machine: Machine) -> None:
    machine.process(10, fds=20, soft="unlimited")
    machine.process(11, fds=10, soft=100)
    machine.process(12, fds=9, soft=12)
    seen = values(await look(probe(machine), 10, 11, 12))
    assert (seen["server_open_fds"], seen["server_max_fds"]) == (9, 12)


async def test_no_limit_of_descriptors_is_said(machine: Machine) -> None:
    machine.process(10, fds=20, soft="unlimited")
    reading = await look(probe(machine), 10)
    assert values(reading)["server_open_fds"] == 20
    assert reasons(reading)["server_max_fds"] == "no limit"


async def test_descriptors_that_may_not_be_seen(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.process(10, fds=2)

    def refused(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(hostfacts, "open_fds", refused)
    reading = await look(probe(machine), 10)
    assert "Permission denied" in reasons(reading)["server_open_fds"]
    assert values(reading)["server_resident_memory_bytes"] > 0


async def test_a_machine_without_proc_is_unknown_throughout(tmp_path: Path) -> None:
    reading = await look(HostProbe(Time(), proc=tmp_path / "none", sysfs=tmp_path), 5)
    assert all(one.name.startswith("vllm_agent_shm") for one in reading.samples)
    assert {"host_memory_total_bytes", "host_cpu_seconds_total", "server_open_fds", "cgroup_memory_bytes"} <= set(
        reasons(reading)
    )


@pytest.mark.parametrize(
    ("file", "text", "check"),
    [
        ("meminfo", "MemTotal: lots kB", "host_memory_total_bytes"),
        ("meminfo", "MemTotal: 5 kB", "host_memory_available_bytes"),
        ("stat", "cpu a b", "host_cpu_seconds_total"),
        ("stat", "", "host_cpu_seconds_total"),
        ("10/stat", "10 (x) R", "server_resident_memory_bytes"),
        ("self/net/dev", "one\ntwo\neth0: x", "network_receive_bytes_total"),
    ],
)
async def test_a_malformed_file_takes_only_its_own_figures(machine: Machine, file: str, text: str, check: str) -> None:
    machine.process(10, fds=1)
    (machine.proc / file).write_text(text)
    reading = await look(probe(machine), 10)
    assert check in reasons(reading)
    assert values(reading)["cgroup_memory_bytes"] == 700


async def test_no_interface_is_a_reason(machine: Machine) -> None:
    machine.counted(lo=(1, 1))
    assert "loopback" in reasons(await look(probe(machine)))["network_receive_bytes_total"]


# -- file systems ------------------------------------------------------------------------------------------


def sizes(monkeypatch: pytest.MonkeyPatch, known: Mapping[str, Space | threading.Event]) -> list[str]:
    """Stand-ins by path; an event hangs until it is set. Gives the paths that were asked."""
    asked = []

    def stand_in(path: str, root: Path) -> Space:
        asked.append(path)
        answer = known[path]
        if isinstance(answer, threading.Event):
            answer.wait(60)
            return Space(99, 500, 50)
        return answer

    monkeypatch.setattr(hostfacts, "measure", stand_in)
    return asked


async def test_a_file_system_that_hangs_hides_no_other_and_comes_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    asked = sizes(monkeypatch, {"/dev/shm": Space(1, 10, 9), "/nfs": hung, "/tmp": Space(2, 100, 40)})
    monkeypatch.setattr(hostfacts, "SPACE_LIMIT_SECONDS", 1.0)
    clock = Time()
    one = probe(machine, clock)
    for _ in range(3):
        reading = await look(one, model_cache="/nfs", tmp="/tmp")
        assert "/nfs: no answer for" in reasons(reading)["disk_free_bytes model_cache"]
        assert values(reading)["disk_free_bytes tmp"] == 40
        clock.now += 31
    assert asked.count("/nfs") == 1
    hung.set()
    for _ in range(200):
        await asyncio.sleep(0.02)
        clock.now += 31
        seen = values(await look(one, model_cache="/nfs", tmp="/tmp"))
        if "disk_free_bytes model_cache" in seen:
            break
    assert seen["disk_free_bytes model_cache"] == 50


async def test_sizes_are_read_every_half_minute_and_at_once_for_another_path(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"/dev/shm": Space(1, 10, 9), "/a": Space(2, 100, 40), "/b": Space(3, 7, 6)}
    asked = sizes(monkeypatch, known)
    clock = Time()
    one = probe(machine, clock)
    for _ in range(6):  # 25 s
        assert values(await look(one, tmp="/a"))["disk_total_bytes tmp"] == 100
        clock.now += 5
    assert asked.count("/a") == 1
    await look(one, tmp="/a")
    assert asked.count("/a") == 2
    assert values(await look(one, tmp="/a", run_dir="/b"))["disk_total_bytes run_dir"] == 7


async def test_two_rounds_at_once_about_other_paths(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes(monkeypatch, {"/dev/shm": Space(1, 10, 9), "/a": Space(2, 100, 40), "/b": Space(3, 7, 6)})
    one = probe(machine)
    readings = await asyncio.gather(look(one, tmp="/a"), look(one, tmp="/a", run_dir="/b"))
    assert all(values(reading)["shm_free_bytes"] == 9 for reading in readings)


async def test_uses_that_share_a_file_system_are_told_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes(monkeypatch, {"/dev/shm": Space(1, 10, 9), "/a": Space(2, 100, 40), "/b": Space(2, 100, 40)})
    reading = await look(probe(machine), model_cache="/a", tmp="/b")
    assert [name for name in values(reading) if name.startswith("disk_free")] == ["disk_free_bytes model_cache"]


async def test_a_file_system_without_a_size_is_unknown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes(monkeypatch, {"/dev/shm": Space(1, 0, 0)})
    assert "no size" in reasons(await look(probe(machine)))["shm_free_bytes"]


# -- the reader ----------------------------------------------------------------------------------------------


def test_what_comes_over_the_socket_is_checked() -> None:
    good = {"name": "disk_free_bytes", "label": "tmp", "value": 5}
    bad: list[object] = [
        {"name": "disk_free_bytes", "label": None, "value": 5},
        {"name": "disk_free_bytes", "label": "x" * 65, "value": 5},
        {"name": "shm_free_bytes", "label": "x", "value": 5},
        {"name": "made_up", "label": None, "value": 5},
        {"name": ["shm_free_bytes"], "label": None, "value": 5},
        {"name": "shm_free_bytes", "label": None, "value": -1},
        {"name": "shm_free_bytes", "label": None, "value": 10**400},
        {"name": "shm_free_bytes", "label": None, "value": "5"},
        {"name": "shm_free_bytes", "label": None, "value": True},
        {"name": "shm_free_bytes", "label": None, "value": float("nan")},
        "text", None, {},
    ]  # fmt: skip
    reading = host_reading("chat", {"measures": [*bad, good], "unknown": [None, {"check": "a", "reason": "b"}]})
    assert values(reading) == {"disk_free_bytes tmp": 5}
    assert reasons(reading) == {"a": "b"}


@pytest.mark.parametrize("document", [{}, {"measures": 5, "unknown": []}, {"measures": []}])
def test_an_answer_of_another_shape_is_a_reason(document: dict[str, object]) -> None:
    reading = host_reading("chat", document)
    assert not reading.samples
    assert "could not be read" in reasons(reading)["host"]


async def test_a_launcher_that_is_away_is_a_reason() -> None:
    class Away:
        async def facts(self, pids: Sequence[int]) -> Mapping[str, object]:
            raise LauncherError("no launcher answers", code="unreachable")

    assert reasons(await HostReader("chat", Away()).read()) == {"host": "no launcher answers"}


# -- real processes ----------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Iterator[int]:
    """A process that holds 40 descriptors more than it was born with."""
    code = "import sys; held = [open('/dev/null') for _ in range(40)]; print(flush=True); sys.stdin.readline()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.wait()


@pytest.mark.timeout(60)
async def test_a_process_of_this_machine(held: int) -> None:
    seen = values(await HostReader("chat", LocalHost()).read([held]))
    assert seen["server_open_fds"] >= 43
    assert seen["server_threads"] == 1
    assert seen["server_resident_memory_bytes"] > 1 << 20
    assert seen["host_memory_total_bytes"] > seen["host_memory_available_bytes"] > 0
    assert seen["shm_total_bytes"] > 0


async def test_without_a_process_nothing_of_the_server_is_guessed() -> None:
    reading = await HostReader("chat", LocalHost()).read()
    assert {"cgroup_memory_bytes", "network_receive_bytes_total", "server_open_fds", "shm_free_bytes"} <= set(
        reasons(reading)
    )
    assert not [name for name in values(reading) if not name.startswith("host_")]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Factory]:
    factory = Factory(tmp_path)
    yield factory
    factory.clean()


@pytest.mark.timeout(120)
async def test_through_a_real_launcher(launch: Factory) -> None:
    launched = launch("--port", str(free_port()))
    await launched.ready()
    reader = HostReader("chat", LauncherHost(launched.client))
    wanted = ("server_resident_memory_bytes", "server_threads", "server_open_fds", "server_cpu_seconds_total")

    async def whole() -> dict[str, float]:
        while True:  # the launcher's own limits hold here, and the machine may be busy
            seen = values(await reader.read())
            if all(seen.get(name, 0) > 0 for name in wanted) and any(name.startswith("disk_free") for name in seen):
                return seen
            await asyncio.sleep(0.1)

    first = await whole()
    assert first["server_resident_memory_bytes"] > 1 << 20
    assert (await whole())["server_cpu_seconds_total"] >= first["server_cpu_seconds_total"]


@pytest.mark.timeout(60)
async def test_a_round_costs_little() -> None:
    """The bound is wide: the machine may be busy. bench/bench_host.py measures."""
    one = HostProbe(time.monotonic)
    await one.read(lambda: Subject(pids=[os.getpid()]))
    rounds = []
    for _ in range(20):
        begun = time.thread_time()
        await one.read(lambda: Subject(pids=[os.getpid()]))
        rounds.append(time.thread_time() - begun)
    assert sorted(rounds)[10] < 0.003
