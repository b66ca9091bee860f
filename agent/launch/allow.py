"""The typed allow-list: which flags and variables an override may change, and within which bounds.

In: names and values that a watcher proposes, or that a file on disk holds. Out: the canonical value, or a
refusal that names the flag, the bound and the remedy. Never trusts who asked: the overrides file is held to
the same list when it is read back.

Why a list and not a pattern: ``LD_PRELOAD``, ``PYTHONPATH`` or ``PATH`` would make the socket a way to run
code as the server's user. A path is taken only where root alone can write, for the same reason.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agent.errors import LauncherError

_SEGMENTS = re.compile(r"expandable_segments:(True|False)\Z")
_NUMBER = {"int": re.compile(r"[0-9]{1,18}\Z"), "float": re.compile(r"[0-9]{0,4}\.?[0-9]{1,18}\Z")}
_LINKS_MAX = 40
_SHOWN_CHARS = 200


@dataclass(frozen=True)
class FlagRule:
    """One flag of ``vllm serve``. ``kind`` is int, float or switch (no value); bounds are inclusive."""

    name: str
    kind: str
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class EnvRule:
    """One variable. ``kind``: choice, int, allocator (torch's allocator settings), program or folder
    (root's).
    """

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None


_COUNT_MAX = 2**31 - 1
_FLAGS = (
    FlagRule("--max-num-seqs", "int", 1, _COUNT_MAX),
    FlagRule("--max-num-batched-tokens", "int", 1, _COUNT_MAX),
    FlagRule("--max-num-active-seqs", "int", 1, _COUNT_MAX),
    FlagRule("--max-num-queued-reqs", "int", 1, _COUNT_MAX),
    FlagRule("--max-model-len", "int", 1, _COUNT_MAX),
    FlagRule("--gpu-memory-utilization", "float", 0.05, 0.99),
    FlagRule("--kv-cache-memory-bytes", "int", 0, 2**50),
    FlagRule("--enforce-eager", "switch"),
    FlagRule("--no-enforce-eager", "switch"),
)
_ENV = (
    EnvRule("PYTORCH_CUDA_ALLOC_CONF", "allocator"),
    EnvRule("PYTORCH_ALLOC_CONF", "allocator"),
    EnvRule("TRITON_PTXAS_PATH", "program"),
    EnvRule("TRITON_PTXAS_BLACKWELL_PATH", "program"),
    EnvRule("CUDA_HOME", "folder"),
    EnvRule("VLLM_USE_DEEP_GEMM", "choice", ("0", "1")),
    EnvRule("VLLM_CPU_KVCACHE_SPACE", "int", minimum=1, maximum=65536),
)
ALLOWED_FLAGS: Mapping[str, FlagRule] = MappingProxyType({rule.name: rule for rule in _FLAGS})
ALLOWED_ENV: Mapping[str, EnvRule] = MappingProxyType({rule.name: rule for rule in _ENV})
SWITCHES = frozenset(rule.name for rule in _FLAGS if rule.kind == "switch")


def refused(message: str, remedy: str) -> LauncherError:
    """A refusal by the allow-list (wire code ``refused``)."""
    return LauncherError(message, code="refused", remedy=remedy)


def check_flag(name: object, value: object) -> tuple[str, str | None]:
    """The canonical ``(name, value)``; None for a switch. Raises LauncherError with code ``refused``."""
    rule = ALLOWED_FLAGS.get(name) if isinstance(name, str) else None
    if rule is None:
        raise refused(f"flag {_shown(name)} may not be overridden", f"use one of {', '.join(ALLOWED_FLAGS)}")
    if rule.kind == "switch":
        if value not in (None, "", True):
            raise refused(f"{rule.name} takes no value, got {_shown(value)}", "send null as its value")
        return rule.name, None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refused(f"{rule.name} needs a number, got {_shown(value)}", "send the number as a string")
    return rule.name, _number(rule.name, str(value), rule.kind, rule.minimum, rule.maximum)


def _shown(value: object) -> str:
    """What was sent, short enough for an error line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _number(name: str, text: str, kind: str, low: float | None, high: float | None) -> str:
    """Plain ASCII digits: what Python takes beyond them (``1_0``, ``٣``, ``nan``) a server may read otherwise."""
    text = text.strip()
    if not _NUMBER[kind].match(text.removeprefix("-")):
        raise refused(f"{name} needs {kind} and got {_shown(text)}", f"send a plain {kind}")
    number: float = int(text) if kind == "int" else float(text)
    if not ((low is None or number >= low) and (high is None or number <= high)):
        raise refused(f"{name} {text} is outside {low} to {high}", f"choose a value from {low} to {high}")
    return str(number) if kind == "int" else text


def check_env(name: object, value: object, operator_env: Mapping[str, str]) -> tuple[str, str | None]:
    """The canonical ``(name, value)``; None unsets. ``operator_env`` is what the launcher itself
    inherited.
    """
    rule = ALLOWED_ENV.get(name) if isinstance(name, str) else None
    if rule is None:
        raise refused(f"variable {_shown(name)} may not be overridden", f"use one of {', '.join(ALLOWED_ENV)}")
    if value is None:
        return rule.name, None
    if not isinstance(value, str) or "\0" in value or len(value) > 4096:
        raise refused(f"{rule.name} needs a string of at most 4096 characters", "send a string, or null to unset")
    if rule.kind == "choice" and value not in rule.choices:
        raise refused(f"{rule.name} may be {' or '.join(rule.choices)}, got {_shown(value)}", "choose one of them")
    if rule.kind == "int":
        value = _number(rule.name, value, "int", rule.minimum, rule.maximum)
    if rule.kind == "allocator":
        _check_allocator(rule.name, value, operator_env.get(rule.name, ""))
    if rule.kind in ("program", "folder"):
        problem = root_only_problem(value, folder=rule.kind == "folder")
        if problem:
            raise refused(f"{rule.name}: {problem}", "name one under a folder that only root can write")
    return rule.name, value


def _check_allocator(name: str, value: str, operators: str) -> None:
    known = set(_pairs(operators))
    for pair in _pairs(value):
        if not _SEGMENTS.match(pair) and pair not in known:
            raise refused(
                f"{name}: {_shown(pair)} is neither expandable_segments nor the operator's own setting",
                "send expandable_segments:True or expandable_segments:False",
            )
    if not _pairs(value):
        raise refused(f"{name}: empty", "send expandable_segments:True, or null to unset")


def _pairs(setting: str) -> list[str]:
    return [pair.strip() for pair in _split_pairs(setting) if pair.strip()]


def _split_pairs(setting: str) -> list[str]:
    """Split at commas outside brackets: ``roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64``."""
    return re.split(r",(?![^\[]*\])", setting)


def merge_allocator(operators: str, override: str) -> str:
    """The operator's allocator settings with those of the override in their place (same key = replaced)."""
    new = _pairs(override)
    keys = {pair.partition(":")[0] for pair in new}
    kept = [pair for pair in _pairs(operators) if pair.partition(":")[0] not in keys]
    return ",".join(kept + new)


def root_only_problem(path: str, *, folder: bool = False) -> str | None:
    """Why ``path`` is not safe to run or read as code, or None: absolute, there, and writable by root alone.

    Every folder and every symbolic link that the kernel passes on the way counts, so that nobody can exchange one
    between this look and the use.
    """
    if not path.startswith("/"):
        return f"{_shown(path)} is not an absolute path"
    try:
        for place in _passed(path):
            problem = _owner_problem(place)
            if problem:
                return problem
        if folder:
            return None if Path(path).is_dir() else f"{path} is not a folder"
        if not Path(path).is_file() or not os.access(path, os.X_OK):
            return f"{path} is not an executable file"
    except (OSError, RuntimeError) as error:
        return f"{path}: {error}"
    except ValueError:
        return f"{_shown(path)} is no file name"
    return None


def _passed(path: str) -> Iterator[Path]:
    """Every folder, link and file on the way to ``path``, as the kernel walks it (path_resolution(7))."""
    here, ahead, links = Path("/"), _words(path), 0
    yield here
    while ahead:
        word = ahead.pop(0)
        if word == "..":
            here = here.parent
            continue
        place = here / word
        yield place
        if place.is_symlink():
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = str(place.readlink())
            here = Path("/") if target.startswith("/") else here
            ahead = _words(target) + ahead
        else:
            here = place


def _words(path: str) -> list[str]:
    return [word for word in path.split("/") if word not in ("", ".")]


def _owner_problem(place: Path) -> str | None:
    if place == Path("/proc"):
        return f"{place} shows every process something else"
    info = place.lstat()
    if info.st_uid != 0:
        return f"{place} belongs to user {info.st_uid}, not to root"
    if stat.S_ISLNK(info.st_mode):
        return None
    # The group's bit counts even where the group is root's: containers run users of group 0, and the bit also stands
    # for whatever an access control list grants (acl(5)).
    if info.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return f"{place} can be written by others than root"
    return None
