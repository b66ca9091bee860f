"""Which vLLM, Triton and torch the command would run, without importing them.

In: the operator's command and environment. Out: versions read from the files beside the command's own Python
(``*.dist-info``, else the package's version file), or None with the reason. The interpreter is asked for its
search path only; importing vLLM would take 7 s and touch the GPU.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.launch.children import Tools
from agent.launch.command import interpreter_words

LIMIT_SECONDS = 5.0
_ASK = "import sys,json;print(json.dumps(sys.path))"
_VERSION_FILES = {"vllm": ("vllm/_version.py", "vllm/version.py"), "triton": ("triton/__init__.py",),
                  "torch": ("torch/version.py",)}  # fmt: skip
_VERSION_LINE = re.compile(r"^(?:__version__|version)\b[^'\"\n]*['\"](\d[^'\"]*)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Stack:
    """The software under the server. ``reason`` says why something is None; ``paths`` is Python's
    search path.
    """

    python: str | None = None
    paths: tuple[Path, ...] = ()
    vllm: str | None = None
    triton: str | None = None
    torch: str | None = None
    reason: str | None = None

    def package(self, relative: str) -> Path | None:
        """The first file ``relative`` on the search path."""
        return next((path / relative for path in self.paths if (path / relative).exists()), None)


async def read_stack(tools: Tools, argv: Sequence[str], env: Mapping[str, str]) -> Stack:
    """Find the command's Python and read the versions beside it."""
    python, reason = find_python(argv, env)
    if python is None:
        return Stack(reason=reason)
    answer = await tools.run([python, "-c", _ASK], timeout=LIMIT_SECONDS, env=env)
    try:
        listed = json.loads(answer.stdout) if answer.code == 0 else None
    except ValueError:
        listed = None
    if not isinstance(listed, list):
        return Stack(python=python, reason=answer.error or f"{python} did not tell its search path")
    paths = tuple(Path(str(entry)) for entry in listed if entry and Path(str(entry)).is_dir())
    vllm = package_version("vllm", paths)
    return Stack(
        python, paths, vllm, package_version("triton", paths), package_version("torch", paths),
        None if vllm else f"no vllm on the search path of {python}",
    )  # fmt: skip


def find_python(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """``(interpreter, None)`` or ``(None, reason)``."""
    python, script = interpreter_words(argv)
    if python is not None:
        found = shutil.which(python, path=env.get("PATH"))
        return (found, None) if found else (None, f"{python} is not on the PATH")
    if script is None:
        return None, "the command names neither python nor vllm"
    path = shutil.which(script, path=env.get("PATH"))
    if path is None:
        return None, f"{script} is not on the PATH"
    return _shebang(Path(path), env)


def _shebang(script: Path, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The interpreter of a console script; pip writes ``#!/bin/sh`` and an exec line where the path is
    long.
    """
    try:
        with script.open("rb") as file:
            head = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError as error:
        return None, f"{script}: {error.strerror}"
    if not head or not head[0].startswith("#!"):
        return None, f"{script} has no shebang"
    line = head[0][2:].split()
    if line and Path(line[0]).name == "env":
        line = [word for word in line[1:] if not word.startswith("-") and "=" not in word]
    elif line and Path(line[0]).name == "sh" and len(head) > 1:
        match = re.match(r"'''exec' \"?([^\"\s]+)", head[1])
        line = [match[1]] if match else []
    found = shutil.which(line[0], path=env.get("PATH")) if line else None
    if found is None or not Path(found).name.startswith(("python", "pypy")):
        return None, f"the shebang of {script} names no Python"
    return found, None


def package_version(name: str, paths: Sequence[Path]) -> str | None:
    """Version of the first ``name`` on the search path, as its dist-info or its own version file says."""
    for path in paths:
        for folder in sorted(path.glob(f"{name}-*.dist-info")):
            return _metadata_version(folder) or folder.name[len(name) + 1 : -len(".dist-info")]
        for relative in _VERSION_FILES.get(name, ()):
            version = _file_version(path / relative)
            if version:
                return version
    return None


def _metadata_version(folder: Path) -> str | None:
    try:
        with (folder / "METADATA").open(encoding="utf-8", errors="replace") as file:
            match = re.search(r"^Version: (\S+)", file.read(8192), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def _file_version(path: Path) -> str | None:
    try:
        match = _VERSION_LINE.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match[1] if match else None
