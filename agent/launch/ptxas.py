"""Which PTX assembler could serve this GPU: candidates, each tried by really assembling a stub.

In: an architecture, the server's environment and software. Out: every candidate with whether root alone can
write it and whether it assembles for the architecture; and the variable that this Triton reads. Never sets
anything: that is ``set-overrides``, which takes root-owned candidates alone.

The variable depends on Triton (triton/backends/nvidia/compiler.py, ``get_ptxas``): up to 3.5 there is one
assembler; 3.6 to 3.8 split at architecture 100, 3.9 at 90. The installed file is read where it is there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.launch.allow import root_only_problem
from agent.launch.children import Tools
from agent.launch.versions import Stack

LIMIT_SECONDS = 2.0
PLAIN, BLACKWELL = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"
_TOOLKITS = (
    "usr/local/cuda*/bin/ptxas",
    "opt/cuda*/bin/ptxas",
    "usr/lib/cuda/bin/ptxas",
    "usr/bin/ptxas",
)
_BUNDLED = (
    "triton/backends/nvidia/bin/ptxas", "triton/backends/nvidia/bin/ptxas-blackwell",
    "nvidia/cuda_nvcc/bin/ptxas", "nvidia/cu13/bin/ptxas", "nvidia/cu12/bin/ptxas", "torch/bin/ptxas",
)  # fmt: skip
# The first PTX version that knows the architecture (NVIDIA: PTX ISA, release notes).
_PTX_VERSION = {90: "8.0", 100: "8.6", 101: "8.6", 103: "8.8", 110: "9.0", 120: "8.7", 121: "8.8"}


@dataclass(frozen=True)
class Arch:
    """A GPU architecture: 90 for compute capability 9.0; the target has the suffix ``a`` from 90 on,
    as Triton asks.
    """

    number: int

    @property
    def target(self) -> str:
        return f"sm_{self.number}a" if self.number >= 90 else f"sm_{self.number}"

    @property
    def stub(self) -> str:
        """The smallest program for this target."""
        version = _PTX_VERSION.get(self.number, "7.0" if self.number < 90 else "8.8")
        head = f".version {version}\n.target {self.target}\n.address_size 64\n"
        return head + ".visible .entry stub() { ret; }\n"


def parse_arch(text: str | int | float) -> Arch | None:
    """``sm_90a``, ``90``, ``9.0``, ``10.3`` → its number; None if it is none of these."""
    match = re.fullmatch(r"(?:sm_?)?(\d+)(?:\.(\d))?[af]?", str(text).strip().lower())
    if match is None:
        return None
    number = int(match[1]) * 10 + int(match[2]) if match[2] is not None else int(match[1])
    return Arch(number) if 30 <= number < 1000 else None


def variable_for(arch: Arch, triton_version: str | None, compiler_source: str | None) -> str | None:
    """The variable that decides on this architecture; None where neither source nor version is known."""
    if compiler_source is not None:
        if "ptxas_blackwell" not in compiler_source and "ptxas-blackwell" not in compiler_source:
            return PLAIN
        below = re.search(r"if\s+arch\s*<\s*(\d+)\s*:\s*\n?\s*return\s+[\w.]*\.ptxas\b", compiler_source)
        at_least = re.search(r"ptxas_blackwell\s+if\s+arch\s*>=\s*(\d+)", compiler_source)
        split = below or at_least
        if split:
            return BLACKWELL if arch.number >= int(split[1]) else PLAIN
    version = re.match(r"(\d+)\.(\d+)", triton_version or "")
    if version is None:
        return None
    release = (int(version[1]), int(version[2]))
    if release <= (3, 5):
        return PLAIN
    return BLACKWELL if arch.number >= (90 if release >= (3, 9) else 100) else PLAIN


def candidates(stack: Stack, env: Mapping[str, str]) -> list[str]:
    """Every assembler worth trying, newest toolkit first, each resolved file once."""
    found = [env[name] for name in (BLACKWELL, PLAIN) if env.get(name)]
    for pattern in _TOOLKITS:
        found += sorted((str(path) for path in Path("/").glob(pattern)), key=_release, reverse=True)
    for folder in stack.paths:
        found += [str(folder / relative) for relative in _BUNDLED if (folder / relative).is_file()]
    unique: dict[str, str] = {}
    for path in found:
        unique.setdefault(str(Path(path).resolve()), path)
    return list(unique.values())


def _release(path: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path))


async def probe_ptxas(tools: Tools, arch: Arch | None, stack: Stack, env: Mapping[str, str]) -> dict[str, object]:
    """``{arch, target, triton_version, variable, candidates:[{path, version, root_owned, assembles,
    error}]}``.
    """
    listed = [await _examine(tools, path, arch) for path in candidates(stack, env)]
    source = _compiler_source(stack)
    return {
        "arch": arch.number if arch else None,
        "target": arch.target if arch else None,
        "triton_version": stack.triton,
        "variable": variable_for(arch, stack.triton, source) if arch else None,
        "candidates": listed,
    }


def _compiler_source(stack: Stack) -> str | None:
    path = stack.package("triton/backends/nvidia/compiler.py")
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path else None
    except OSError:
        return None


async def _examine(tools: Tools, path: str, arch: Arch | None) -> dict[str, object]:
    answer = await tools.run([path, "--version"], timeout=LIMIT_SECONDS)
    release = re.search(r"release (\d+\.\d+)(?:, V([\d.]+))?", answer.stdout)
    problem = root_only_problem(path)
    result: dict[str, object] = {
        "path": path, "version": (release[2] or release[1]) if release else None,
        "root_owned": problem is None, "assembles": None, "error": answer.error or problem,
    }  # fmt: skip
    if arch is None or answer.error:
        return result
    error = await _assemble(tools, path, arch)
    return {**result, "assembles": error is None, "error": error or problem}


async def _assemble(tools: Tools, path: str, arch: Arch) -> str | None:
    """None if the stub assembles, else the assembler's own words."""
    try:
        with tempfile.TemporaryDirectory(prefix="agent-ptxas-") as folder:
            source, target = Path(folder) / "stub.ptx", Path(folder) / "stub.cubin"
            source.write_text(arch.stub)
            argv = [path, f"--gpu-name={arch.target}", str(source), "-o", str(target)]
            answer = await tools.run(argv, timeout=LIMIT_SECONDS)
            if answer.error or answer.code != 0:
                return answer.error or (answer.stderr or answer.stdout).strip()[:400] or f"exit {answer.code}"
            return None if target.exists() and target.stat().st_size else "it wrote no object file"
    except OSError as error:
        return f"no temporary folder: {error.strerror}"
