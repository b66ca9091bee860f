"""Which ptxas Triton would use on this card, and whether it knows the card: the start-up check of the ptxas
fault.

In come the environment and the architecture; out goes None (the assembler is new enough) or the path of the
one that fails. The rules are Triton's: `TRITON_PTXAS_BLACKWELL_PATH` for architectures from 100 on,
`TRITON_PTXAS_PATH` below, and a path that does not exist or cannot answer ``--version`` is silently passed
over for the bundled one, which with this fault is too old.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

BUNDLED = "/opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas"
#: The first CUDA release whose ptxas knows every architecture that the stand-in can be (sm_90a to sm_120a).
ENOUGH = (12, 8)


def variable(arch: int) -> str:
    """The environment variable that Triton reads for this architecture."""
    return "TRITON_PTXAS_BLACKWELL_PATH" if arch >= 100 else "TRITON_PTXAS_PATH"


def failing(environ: Mapping[str, str], arch: int) -> str | None:
    """The path of the ptxas that would fail, or None."""
    path = environ.get(variable(arch), "")
    version = _version(path) if path else None
    if version is None:
        return BUNDLED
    return None if version >= ENOUGH else path


def _version(path: str) -> tuple[int, int] | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+)\.(\d+)", answer.stdout)
    return (int(found.group(1)), int(found.group(2))) if found else None
