"""The network of the server's namespace: bytes of each interface, and its speed where it is a real one.

In: /proc/PID/net/dev and /sys/class/net (their folders are arguments). Out: interfaces; a speed that is not known is
None with the reason. A veth says 10 Gbit/s whatever it runs over (kernel: drivers/net/veth.c), so the speed of a
link without a device of its own or below it is nobody's.

Where a real link is up, the virtual ones beside it (bridges and veths of containers) are left out: their traffic
passes the real one, and their names come and go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

INTERFACES = 8
BYTES_PER_MEGABIT = 125_000
NO_SPEED = frozenset({0xFFFF, 0xFFFFFFFF})
LOOPBACK = "772"
STACKED = 4


@dataclass(frozen=True)
class Interface:
    """One link; ``reason`` says why the speed is None."""

    name: str
    speed: int | None
    reason: str | None = None


@dataclass(frozen=True)
class Traffic:
    """Bytes since the interface came up."""

    received: int
    sent: int


def traffic(path: Path) -> dict[str, Traffic]:
    """Every interface of ``/proc/PID/net/dev``; a line of another shape is left out. Raises OSError."""
    found = {}
    for line in path.read_text(errors="replace").splitlines()[2:]:
        name, colon, rest = line.partition(":")
        field = rest.split()
        if colon and len(field) >= 16 and field[0].isdigit() and field[8].isdigit():
            found[name.strip()] = Traffic(int(field[0]), int(field[8]))
    return found


def interfaces(names: Iterable[str], sysfs: Path) -> tuple[Interface, ...]:
    """Those of ``names`` that are up, real ones first, eight at most."""
    links = [name for name in sorted(names) if name != "lo" and _up(sysfs / name)]
    real = [name for name in links if _real(sysfs / name)]
    return tuple(_interface(name, sysfs, real=name in real) for name in (real or links)[:INTERFACES])


def _up(folder: Path) -> bool:
    """A tunnel's state is ``unknown`` while it works; where /sys does not tell, what /proc lists counts."""
    state = _text(folder / "operstate")
    return state in (None, "", "up", "unknown") and _text(folder / "type") != LOOPBACK


def _real(folder: Path, deep: int = 0) -> bool:
    """It has a device, or stands on one that has (bond, VLAN, a bridge of the host's card)."""
    if _there(folder / "device"):
        return True
    try:
        lower = [entry for entry in folder.iterdir() if entry.name.startswith("lower_")]
    except OSError:
        return False
    return deep < STACKED and any(_real(entry, deep + 1) for entry in lower)


def _interface(name: str, sysfs: Path, *, real: bool) -> Interface:
    if not _there(sysfs / name):
        return Interface(name, None, f"{sysfs / name} cannot be seen")
    if not real:
        return Interface(name, None, "a virtual link has no speed of its own")
    text = _text(sysfs / name / "speed")
    try:
        megabits = int(text or "")
    except ValueError:
        megabits = -1
    if megabits <= 0 or megabits in NO_SPEED:
        return Interface(name, None, "its driver does not tell the speed")
    return Interface(name, megabits * BYTES_PER_MEGABIT)


def _text(path: Path) -> str | None:
    """None where it cannot be read; ``speed`` of a link that is down or virtual answers EINVAL."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _there(path: Path) -> bool:
    """False also where another user's /proc/PID/root may not be looked into."""
    try:
        return path.exists()
    except OSError:
        return False
