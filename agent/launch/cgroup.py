"""The memory cgroup that counts against the server: its limit, what it uses of it, its OOM kills.

In: a process and the kernel's files (their folder is an argument, so that tests lay out their own). Out: plain
values, and for each that is missing the reason. Never a number of a group that the process does not live in: where
the group is not visible from here (another container's namespace), it is unknown.

A limit holds for everything below it, so the smallest of all groups up the tree counts (systemd slices, pods), and
what counts against that limit is the use of the group that has it. Use is what cannot be dropped at once, as kubelet
counts it (its working set): usage less ``inactive_file`` (kernel: Documentation/admin-guide/cgroup-v1/memory.rst,
cgroup-v2.rst).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
UNLIMITED = 1 << 60
LEVELS = 64
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Files:
    """How one version of the cgroup names things."""

    version: int
    limit: str
    usage: str
    inactive: str
    events: str


VERSION1 = Files(1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control")
VERSION2 = Files(2, "memory.max", "memory.current", "inactive_file", "memory.events")


@dataclass(frozen=True)
class MemoryGroup:
    """Bytes and kills; None has its reason in ``unknown`` under the name of the field."""

    version: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
    oom_kills: int | None = None
    unknown: dict[str, str] = field(default_factory=dict)


def memory_group(pid: int | str = "self", proc: Path = PROC) -> MemoryGroup:
    """What counts against the memory of ``pid``. Never raises."""
    try:
        files, path = _membership((proc / str(pid) / "cgroup").read_text(errors="replace"))
        mount, root = _mount(files, (proc / "self" / "mountinfo").read_text(errors="replace"))
        groups = list(_upwards(mount, root, path, files))
    except OSError as error:
        return _none(f"{error.filename or proc}: {error.strerror or error}")
    except LookupError as error:
        return _none(str(error.args[0]))
    return _judged(files, groups)


def _none(reason: str, version: int | None = None) -> MemoryGroup:
    return MemoryGroup(version, unknown=dict.fromkeys(("used_bytes", "limit_bytes", "oom_kills"), reason))


def _membership(text: str) -> tuple[Files, str]:
    """Version and path of the group; v1 counts memory where it has that controller (hybrid), else v2."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            paths.setdefault(controller, path)
    for controller, files in (("memory", VERSION1), ("", VERSION2)):
        if paths.get(controller, "").startswith("/"):
            return files, paths[controller]
    raise LookupError("the process is in no memory cgroup")


def _mount(files: Files, mountinfo: str) -> tuple[Path, str]:
    """Where that hierarchy is mounted here, and which of its folders the mount shows (proc(5), mountinfo)."""
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        field_, kind = head.split(" "), [*tail.split(" "), "", "", ""]
        if len(field_) < 6:
            continue
        fits = kind[0] == "cgroup2" if files.version == 2 else kind[0] == "cgroup" and "memory" in kind[2].split(",")
        if fits:
            return Path(_unescaped(field_[4])), _unescaped(field_[3])
    raise LookupError(f"the memory cgroup (version {files.version}) is not mounted here")


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)


def _upwards(mount: Path, root: str, path: str, files: Files) -> Iterator[Path]:
    """The group and those above it, as far as they are visible."""
    below = [part for part in path.split("/") if part]
    shown = [part for part in root.split("/") if part]
    if below[: len(shown)] != shown or ".." in below[len(shown) :]:
        raise LookupError(f"the process's memory cgroup {path} is not visible here ({mount} shows {root})")
    below = below[len(shown) :]
    folder = mount.joinpath(*below)
    if not folder.is_dir():
        raise LookupError(f"{folder}: the process's memory cgroup is not visible here")
    for _ in range(min(len(below), LEVELS) + 1):
        if (folder / files.usage).exists():  # in v2 memory is counted by the nearest group with the controller
            yield folder
        folder = folder.parent


def _judged(files: Files, groups: list[Path]) -> MemoryGroup:
    if not groups:
        return _none("the root cgroup alone counts its memory: no container, no limit", files.version)
    unknown: dict[str, str] = {}
    limits = {folder: _limit(folder, files, unknown) for folder in groups}
    smallest = min(
        (folder for folder in groups if limits[folder] is not None), key=lambda it: limits[it] or 0, default=None
    )
    limit = limits[smallest] if smallest is not None else None
    hidden = _hierarchical(groups[0]) if files.version == 1 else None
    if hidden is not None and (limit is None or hidden < limit):  # set above what this mount shows
        smallest, limit = groups[-1], hidden
    if limit is None:
        unknown.setdefault("limit_bytes", "no limit")
    else:
        unknown.pop("limit_bytes", None)
    used = _used(smallest or groups[0], files, unknown)
    kills = _keyed(groups[0] / files.events, "oom_kill", unknown, "oom_kills")
    return MemoryGroup(files.version, used, limit, kills, unknown)


def _limit(folder: Path, files: Files, unknown: dict[str, str]) -> int | None:
    """None where there is none; one that cannot be read is told unless another holds."""
    try:
        text = (folder / files.limit).read_text().strip()
        if text == "max":
            return None
        limit = int(text)
        return limit if 0 <= limit < UNLIMITED else None
    except FileNotFoundError:
        return None  # the root of v2 has no such file
    except (OSError, ValueError) as error:
        unknown["limit_bytes"] = _why(folder / files.limit, error)
        return None


def _hierarchical(folder: Path) -> int | None:
    limit = _keyed(folder / "memory.stat", "hierarchical_memory_limit", {}, "")
    return limit if limit is not None and limit < UNLIMITED else None


def _used(folder: Path, files: Files, unknown: dict[str, str]) -> int | None:
    try:
        usage = int((folder / files.usage).read_text())
    except (OSError, ValueError) as error:
        unknown["used_bytes"] = _why(folder / files.usage, error)
        return None
    inactive = _keyed(folder / "memory.stat", files.inactive, unknown, "used_bytes")
    return None if inactive is None else max(0, usage - inactive)


def _keyed(path: Path, key: str, unknown: dict[str, str], name: str) -> int | None:
    try:
        match = re.search(rf"^{key} (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
    except OSError as error:
        unknown[name] = _why(path, error)
        return None
    if match is None:
        unknown[name] = f"{path} has no {key}"
        return None
    return int(match[1])


def _why(path: Path, error: OSError | ValueError) -> str:
    return f"{path}: {error.strerror}" if isinstance(error, OSError) else f"{path} holds no number"
