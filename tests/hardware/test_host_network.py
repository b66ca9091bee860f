"""Which interfaces are told, and which speed is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.launch.network import interfaces, traffic
from tests.hardware.host_trees import Machine, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def told(machine: Machine, *names: str) -> dict[str, int | None]:
    return {it.name: it.speed for it in interfaces(names, machine.sysfs / "class" / "net")}


def test_bytes_of_every_interface_are_read(machine: Machine) -> None:
    machine.counted(lo=(5, 5), eth0=(3617319180, 4988413), ib0=(1 << 60, 2))
    found = traffic(machine.proc / "self" / "net" / "dev")
    assert (found["eth0"].received, found["eth0"].sent) == (3617319180, 4988413)
    assert found["ib0"].received == 1 << 60


def test_a_name_without_a_space_before_its_number_and_broken_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "dev", "head\nhead\neth0:99 1 1 1 1 1 1 1 77 1 1 1 1 1 1 1\nbroken: 1 2\nnothing\n x: a b")
    assert {name: (it.received, it.sent) for name, it in traffic(path).items()} == {"eth0": (99, 77)}


def test_real_links_come_alone_with_their_speed(machine: Machine) -> None:
    machine.link("eth0", speed=25_000, device=True)
    machine.link("ib0", speed=400_000, device=True, kind=32)
    machine.link("docker0", speed=10_000)
    machine.link("veth12ab", speed=10_000)
    assert told(machine, "lo", "docker0", "eth0", "ib0", "veth12ab") == {"eth0": 3_125_000_000, "ib0": 50_000_000_000}


def test_a_container_has_only_its_veth_and_that_has_no_speed(machine: Machine) -> None:
    """A veth claims 10 Gbit/s."""
    machine.link("eth0", speed=10_000)
    (one,) = interfaces(["lo", "eth0"], machine.sysfs / "class" / "net")
    assert (one.name, one.speed) == ("eth0", None)
    assert "virtual" in str(one.reason)


def test_a_bond_and_a_vlan_stand_on_real_cards(machine: Machine) -> None:
    card = machine.link("eth1", speed=100_000, device=True)
    bond = machine.link("bond0", speed=200_000)
    vlan = machine.link("bond0.7", speed=200_000)
    (bond / "lower_eth1").symlink_to(card)
    (vlan / "lower_bond0").symlink_to(bond)
    assert told(machine, "bond0", "bond0.7", "eth1") == {
        "bond0": 25_000_000_000,
        "bond0.7": 25_000_000_000,
        "eth1": 12_500_000_000,
    }


def test_links_that_stand_on_each_other_end(machine: Machine) -> None:
    one, two = machine.link("a"), machine.link("b")
    (one / "lower_b").symlink_to(two)
    (two / "lower_a").symlink_to(one)
    assert told(machine, "a", "b") == {"a": None, "b": None}


@pytest.mark.parametrize("speed", ["-1", "0", "65535", "4294967295", "fast", "", None])
def test_a_driver_that_does_not_tell_the_speed(machine: Machine, speed: str | None) -> None:
    machine.link("eth0", speed=speed, device=True)
    (one,) = interfaces(["eth0"], machine.sysfs / "class" / "net")
    assert one.speed is None
    assert "driver" in str(one.reason)


def test_links_that_are_down_and_loopbacks_are_left_out(machine: Machine) -> None:
    machine.link("eth0", device=True, state="down", speed=1000)
    machine.link("dummy", kind=772, state="unknown")
    machine.link("tun0", state="unknown")
    assert told(machine, "lo", "eth0", "dummy", "tun0") == {"tun0": None}


def test_eight_at_most(machine: Machine) -> None:
    names = [f"eth{number}" for number in range(12)]
    for name in names:
        machine.link(name, speed=1000, device=True)
    assert len(told(machine, *names)) == 8


def test_without_sys_what_proc_lists_counts(machine: Machine) -> None:
    (one,) = interfaces(["lo", "eth0"], machine.folder / "nothing")
    assert (one.name, one.speed) == ("eth0", None)
