"""How fast the fault catalogue reads a log: an ordinary one, and the wall of errors after an engine's death.

In: the shipped catalogue, made-up logs in vLLM's form. Out: megabytes a second on one core, five runs each,
as JSON under bench/results. Budgets: 100 MB/s ordinary, 10 MB/s error-dense.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from agent.diagnose import Catalogue, LogSession, load_catalogue  # noqa: E402
from tests.support.figures import keep  # noqa: E402

RUNS = 5
CHUNK = 1 << 16
SIZE = 32 << 20
START = "(APIServer pid=100) INFO 11-30 10:00:00 [api_utils.py:286] non-default args: {'model': '/models/m'}"
API = "(APIServer pid=100)"
ORDINARY = (
    f'{API} INFO:     127.0.0.1:51234 - "POST /v1/completions HTTP/1.1" 200 OK',
    f"{API} INFO 11-30 10:00:10 [loggers.py:279] Engine 000: Avg prompt throughput: 812.1 tokens/s, "
    "Avg generation throughput: 2048.9 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.4%",
)
WALL = (
    f'{API} ERROR 11-30 10:00:11 [serving.py:500]   File "/opt/vllm/v1/engine/async_llm.py", line 512',
    f"{API} ERROR 11-30 10:00:11 [serving.py:500]     raise EngineDeadError()",
    f"{API} ERROR 11-30 10:00:11 [serving.py:500] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
)


def log(lines: Sequence[str]) -> bytes:
    """``SIZE`` bytes of these lines after the start of a server."""
    block = ("\n".join(lines) + "\n").encode()
    return f"{START}\n".encode() + block * (SIZE // len(block))


def megabytes_a_second(catalogue: Catalogue, data: bytes) -> float:
    """One pass in chunks as the launcher's stream brings them."""
    session = LogSession(catalogue, source="bench")
    begun = time.perf_counter()
    for position in range(0, len(data), CHUNK):
        session.feed(data[position : position + CHUNK])
    return round(len(data) / 1e6 / (time.perf_counter() - begun), 1)


def main() -> int:
    catalogue = load_catalogue()
    figures: dict[str, object] = {"unit": "MB/s", "bytes": SIZE}
    for name, lines, budget in (("ordinary", ORDINARY, 100), ("error_dense", WALL, 10)):
        data = log(lines)
        raw = [megabytes_a_second(catalogue, data) for _ in range(RUNS)]
        figures[name] = {"budget": budget, "worst": min(raw), "raw": raw}
        print(f"log scan, {name}: {min(raw)} to {max(raw)} MB/s (budget {budget})")
    keep("log-scan", "make bench", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
