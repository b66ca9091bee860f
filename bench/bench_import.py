"""How long the commands take to start: wall time of a fresh interpreter until the import is done, 15 runs
each.

In: this interpreter. Out: milliseconds above a bare interpreter, as JSON under bench/results. Budget: 150
ms for ``agent diagnose``; 40 ms for the launcher.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.figures import keep, spread  # noqa: E402

RUNS = 15
MODULES = {"agent": None, "agent.launch": 40, "agent.sim": None, "agent.diagnose": 150, "agent.watch": None}


def milliseconds(statement: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT)
    return (time.perf_counter() - begun) * 1000


def main() -> int:
    bare = [milliseconds("pass") for _ in range(RUNS)]
    base = sorted(bare)[RUNS // 2]
    figures: dict[str, object] = {"unit": "ms above a bare interpreter", "bare": spread(bare)}
    for module, budget in MODULES.items():
        raw = [round(milliseconds(f"import {module}") - base, 1) for _ in range(RUNS)]
        figures[module] = {"budget": budget, **spread(raw), "raw": raw}
        print(f"import {module}: median {spread(raw)['p50']:.0f} ms above bare (budget {budget or 'none'})")
    keep("import", "make bench", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
