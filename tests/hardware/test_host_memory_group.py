"""Which memory group counts against the server, on trees of each kind, and one real kill by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.launch.cgroup import MemoryGroup, memory_group
from tests.hardware.host_trees import GIB, NO_LIMIT_V1, Machine, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def numbers(group: MemoryGroup) -> tuple[int | None, int | None, int | None]:
    return group.used_bytes, group.limit_bytes, group.oom_kills


def test_v2_container_with_its_own_namespace(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/", 2)
    machine.group2("/", current=8 * GIB, max=10 * GIB, inactive=GIB, oom_kill=2)
    group = memory_group("self", machine.proc)
    assert (group.version, numbers(group), group.unknown) == (2, (7 * GIB, 10 * GIB, 2), {})


def test_v2_path_of_the_host_seen_through_a_mount_of_the_container(machine: Machine) -> None:
    """No cgroup namespace: /proc shows the host's path, the mount begins in the middle of it."""
    machine.mounted(2, root="/kubepods.slice/pod1")
    machine.member("/kubepods.slice/pod1/engine", 2)
    machine.group2("/engine", current=100, max=1000, inactive=10, oom_kill=0)
    machine.group2("/", current=500, max="max", inactive=0, oom_kill=0)
    assert numbers(memory_group("self", machine.proc)) == (90, 1000, 0)


def test_v2_systemd_slices_the_smallest_limit_counts_with_the_use_of_its_group(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/llm.slice/llm-prod.slice/vllm.service", 2)
    machine.group2("/llm.slice/llm-prod.slice/vllm.service", current=300, max=900, inactive=50, oom_kill=1)
    machine.group2("/llm.slice/llm-prod.slice", current=700, max=800, inactive=20, oom_kill=4)
    machine.group2("/llm.slice", current=750, max=5000, inactive=30, oom_kill=4)
    assert numbers(memory_group("self", machine.proc)) == (680, 800, 1)


def test_v2_memory_is_counted_by_the_nearest_group_that_has_the_controller(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/user.slice/session-3.scope", 2)
    machine.group2("/user.slice/session-3.scope")
    machine.group2("/user.slice", current=70, max="max", inactive=20, oom_kill=3)
    group = memory_group("self", machine.proc)
    assert numbers(group) == (50, None, 3)
    assert group.unknown == {"limit_bytes": "no limit"}


def test_v2_root_group_of_a_bare_host_has_no_numbers_and_says_so(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/", 2)
    group = memory_group("self", machine.proc)
    assert numbers(group) == (None, None, None)
    assert "no container" in group.unknown["limit_bytes"]


def test_v1_no_limit_is_a_huge_number(machine: Machine) -> None:
    machine.mounted(1)
    machine.member("/docker/abc", 1)
    machine.group1("/docker/abc", limit=NO_LIMIT_V1, usage=1000, inactive=300, oom_kill=5)
    machine.group1("/docker", limit=NO_LIMIT_V1, usage=2000)
    machine.group1("/", limit=NO_LIMIT_V1, usage=9000)
    group = memory_group("self", machine.proc)
    assert (group.version, numbers(group), group.unknown) == (1, (700, None, 5), {"limit_bytes": "no limit"})


def test_v1_mount_of_a_container_begins_at_its_own_group(machine: Machine) -> None:
    machine.mounted(1, root="/docker/abc")
    machine.member("/docker/abc", 1)
    machine.group1("/", limit=4096, usage=1000, inactive=100, oom_kill=1)
    assert numbers(memory_group("self", machine.proc)) == (900, 4096, 1)


def test_v1_limit_that_was_set_above_what_is_mounted_is_known_from_the_statistics(machine: Machine) -> None:
    """A pod's limit: only memory.stat of the container tells it, and the container's use is all that is seen of it."""
    machine.mounted(1, root="/kubepods/pod1/c1")
    machine.member("/kubepods/pod1/c1", 1)
    machine.group1("/", limit=NO_LIMIT_V1, usage=1000, inactive=100, whole_limit=2048)
    assert numbers(memory_group("self", machine.proc)) == (900, 2048, 0)


def test_v1_nested_limits(machine: Machine) -> None:
    machine.mounted(1)
    machine.member("/pods/a/c", 1)
    machine.group1("/pods/a/c", limit=5000, usage=100, inactive=10, oom_kill=3, whole_limit=3000)
    machine.group1("/pods/a", limit=3000, usage=2900, inactive=400, oom_kill=0)
    machine.group1("/pods", limit=NO_LIMIT_V1, usage=9000)
    assert numbers(memory_group("self", machine.proc)) == (2500, 3000, 3)


def test_hybrid_counts_memory_in_v1_where_that_has_the_controller(machine: Machine) -> None:
    machine.mounted(1)
    machine.member("/system.slice/vllm.service", 1)
    machine.group1("/system.slice/vllm.service", limit=500, usage=50)
    assert memory_group("self", machine.proc).version == 1


def test_hybrid_without_v1_memory_is_v2(machine: Machine) -> None:
    machine.mounted(2)
    write(machine.proc / "self" / "cgroup", "9:name=systemd:/x\n0::/system.slice/vllm.service")
    machine.group2("/system.slice/vllm.service", current=5, max=10, inactive=0, oom_kill=0)
    assert numbers(memory_group("self", machine.proc)) == (5, 10, 0)


@pytest.mark.parametrize("path", ["/../other", "/kubepods/pod2/c9", "/kubepods/pod1/../x"])
def test_a_group_of_another_container_is_unknown_and_never_replaced_by_ours(machine: Machine, path: str) -> None:
    machine.mounted(2, root="/kubepods/pod1")
    machine.member(path, 2, pid=77)
    machine.group2("/", current=5, max=10, inactive=0, oom_kill=0)
    group = memory_group(77, machine.proc)
    assert numbers(group) == (None, None, None)
    assert "not visible" in group.unknown["used_bytes"]


def test_another_process_has_its_own_group(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/watcher", 2)
    machine.member("/engine", 2, pid=77)
    machine.group2("/watcher", current=1, max=2, inactive=0, oom_kill=0)
    machine.group2("/engine", current=30, max=40, inactive=5, oom_kill=6)
    assert numbers(memory_group(77, machine.proc)) == (25, 40, 6)


@pytest.mark.parametrize(
    ("file", "text", "missing"),
    [
        ("memory.current", "many", {"used_bytes"}),
        ("memory.current", None, {"used_bytes", "limit_bytes", "oom_kills"}),
        ("memory.max", "-", {"limit_bytes"}),
        ("memory.stat", "inactive_file lots", {"used_bytes"}),
        ("memory.stat", None, {"used_bytes"}),
        ("memory.events", "oom_kill", {"oom_kills"}),
        ("memory.events", None, {"oom_kills"}),
    ],
)
def test_a_file_that_is_missing_or_malformed_takes_only_its_own_figure(
    machine: Machine, file: str, text: str | None, missing: set[str]
) -> None:
    machine.mounted(2)
    machine.member("/a", 2)
    machine.group2("/a", current=30, max=40, inactive=5, oom_kill=6)
    if text is None:
        (machine.mount / "a" / file).unlink()
    else:
        write(machine.mount / "a" / file, text)
    group = memory_group("self", machine.proc)
    assert set(group.unknown) == missing
    told = {"used_bytes": group.used_bytes, "limit_bytes": group.limit_bytes, "oom_kills": group.oom_kills}
    assert {name for name, value in told.items() if value is None} == missing


def test_a_broken_limit_hides_no_limit_that_can_be_read(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/a/b", 2)
    machine.group2("/a/b", current=30, max="?", inactive=5, oom_kill=6)
    machine.group2("/a", current=35, max=50, inactive=5, oom_kill=6)
    assert numbers(memory_group("self", machine.proc)) == (30, 50, 6)


def test_use_is_never_below_zero(machine: Machine) -> None:
    machine.mounted(2)
    machine.member("/a", 2)
    machine.group2("/a", current=3, max=40, inactive=5, oom_kill=0)
    assert memory_group("self", machine.proc).used_bytes == 0


@pytest.mark.parametrize("text", ["", "garbage", "4:cpu:/x", "::", "0::relative"])
def test_a_process_in_no_memory_group(machine: Machine, text: str) -> None:
    machine.mounted(2)
    write(machine.proc / "self" / "cgroup", text)
    assert "no memory cgroup" in memory_group("self", machine.proc).unknown["limit_bytes"]


def test_a_process_that_has_ended_or_a_mount_that_is_not_there(machine: Machine) -> None:
    assert "No such file" in memory_group(4711, machine.proc).unknown["used_bytes"]
    machine.member("/a", 2)
    write(machine.proc / "self" / "mountinfo", "22 27 0:21 / /proc rw - proc proc rw\nhalf a line\n - cgroup2")
    assert "not mounted" in memory_group("self", machine.proc).unknown["used_bytes"]


def test_a_mount_with_a_space_in_its_name(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    spaced = tmp_path / "the cgroup"
    machine.mount.rename(spaced)
    machine.mount = spaced
    machine.mounted(2)
    path = machine.proc / "self" / "mountinfo"
    path.write_text(path.read_text().replace(str(spaced), str(spaced).replace(" ", "\\040")))
    machine.member("/a", 2)
    machine.group2("/a", current=3, max=40, inactive=1, oom_kill=0)
    assert memory_group("self", machine.proc).limit_bytes == 40


# -- the kernel itself ------------------------------------------------------------------------------------

HUNGRY = "import sys; sys.stdin.readline(); hoard = bytearray(200 << 20)"
LIMIT = 48 << 20


def own_groups() -> list[Path]:
    """Our own memory group and those above it: v2 gives a child the controller only where its parent hands it down."""
    paths = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next((path for _, controllers, path in paths if controllers == "memory"), None)
    mount = Path("/sys/fs/cgroup") if first is None else Path("/sys/fs/cgroup/memory")
    own = mount / (first if first is not None else paths[-1][2]).strip("/")
    return [own, *(folder for folder in own.parents if folder.is_relative_to(mount))]


def made_in(parent: Path) -> Path | None:
    """A new group with a small limit; None where that is not possible."""
    folder = parent / f"agent-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    for name in ("memory.limit_in_bytes", "memory.max"):
        if (folder / name).exists():
            (folder / name).write_text(str(LIMIT))
            return folder
    folder.rmdir()
    return None


@pytest.fixture
def small_group() -> Iterator[Path]:
    folder = next((made for parent in own_groups() if (made := made_in(parent)) is not None), None)
    if folder is None:
        pytest.skip("no memory group can be made here")
    yield folder
    for _ in range(100):
        try:
            folder.rmdir()
            break
        except OSError:
            time.sleep(0.05)


@pytest.mark.timeout(60)
def test_a_real_kill_is_counted_and_the_real_limit_read(small_group: Path) -> None:
    keeper = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE)
    victim = subprocess.Popen([sys.executable, "-c", HUNGRY], stdin=subprocess.PIPE)
    try:
        for process in (keeper, victim):
            (small_group / "cgroup.procs").write_text(str(process.pid))
        before = memory_group(keeper.pid)
        assert (before.limit_bytes, before.oom_kills) == (LIMIT, 0)
        assert before.used_bytes is not None
        assert before.used_bytes < LIMIT
        victim.communicate(b"\n", timeout=40)
        assert victim.returncode == -9
        assert memory_group(keeper.pid).oom_kills == 1
    finally:
        for process in (keeper, victim):
            process.kill()
            process.wait()
