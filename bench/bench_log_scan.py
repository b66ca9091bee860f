"""How fast the fault catalogue reads a log: an ordinary one, and the wall of errors after an engine's death.

In: the shipped catalogue; the start-up of a real H200 server (tests/data/captures/logs/h200_base.log), and after it
lines in vLLM's form, mixed as below. Out: megabytes per second of one core's time (the wall clock's beside it, since
a shared machine gives less than a core), five passes each. Budgets: 100 MB/s ordinary, 10 MB/s error-dense.

What an ordinary log holds: vLLM prints one throughput line every 10 s while it works, and one access line for each
request. A Prometheus scrape, two probes of a kubelet and an agent's 1 s polling alone make 20 to 30 access lines in
10 s, traffic makes more (a captured CPU server under light load: 456 to 7, 65 to 1). ``ordinary`` has 30 to 1, which
is the least that a watched server prints. The other kinds of ordinary have no budget and are printed so that the mix
cannot hide them: ``requests`` is a server that logs each request with its prompt (vLLM's default until 0.9),
``unvisited`` has one access line to each throughput line, as nobody but one patient client would make it, and
``warned`` has a warning among every thousand lines.
"""

from __future__ import annotations

import sys
import time

from frame import LOGS, Report

from agent.diagnose import Catalogue, LogSession, load_catalogue

RUNS = 5
CHUNK = 1 << 16
SIZE = 32 << 20
READY = "Application startup complete."
API = "(APIServer pid=548)"
ACCESS = (
    f'{API} INFO:     127.0.0.1:51234 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    f'{API} INFO:     10.24.3.17:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    f'{API} INFO:     10.24.0.1:38230 - "GET /health HTTP/1.1" 200 OK\n'
    f'{API} INFO:     127.0.0.1:51240 - "GET /metrics HTTP/1.1" 200 OK\n'
    f'{API} INFO:     10.24.3.18:40116 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
)
THROUGHPUT = (
    f"{API} INFO 11-30 16:20:10 [loggers.py:335] Engine 000: Avg prompt throughput: 812.1 tokens/s, Avg generation "
    "throughput: 2048.9 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.4%, Prefix cache hit "
    "rate: 37.5%\n"
)
REQUEST = (
    f"{API} INFO 11-30 16:20:11 [logger.py:41] Received request cmpl-8f1c: prompt: 'Write a story about an engine "
    "that died with a CUDA error: out of memory', params: SamplingParams(n=1, temperature=0.7, max_tokens=400)\n"
    f"{API} INFO 11-30 16:20:11 [async_llm.py:261] Added request cmpl-8f1c.\n"
)
WARNING = f"{API} WARNING 11-30 16:20:12 [protocol.py:80] The following fields were present but ignored: KeyError: x\n"
WALL = (
    f'{API} ERROR 11-30 16:20:13 [serving.py:500]   File "/opt/vllm/v1/engine/async_llm.py", line 512\n'
    f"{API} ERROR 11-30 16:20:13 [serving.py:500]     raise EngineDeadError()\n"
    f"{API} ERROR 11-30 16:20:13 [serving.py:500] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)
KINDS: dict[str, tuple[str, int | None]] = {
    "ordinary": (ACCESS * 6 + THROUGHPUT, 100),
    "error_dense": (WALL, 10),
    "requests": (REQUEST + ACCESS, None),
    "unvisited": (ACCESS.splitlines(keepends=True)[0] + THROUGHPUT, None),
    "warned": ((ACCESS * 6 + THROUGHPUT) * 32 + WARNING, None),
}


def start_up() -> str:
    """A real server's lines up to the one that says it is ready."""
    text = (LOGS / "h200_base.log").read_text(encoding="utf-8")
    before, ready, _ = text.partition(READY)
    assert ready, "the capture has no end of a start"
    return f"{before}{ready}\n"


def log(lines: str) -> bytes:
    """``SIZE`` bytes of these lines after the start of a server."""
    return (start_up() + lines * (SIZE // len(lines))).encode()


def megabytes_a_second(catalogue: Catalogue, data: bytes) -> tuple[float, float]:
    """One pass in chunks as the launcher's stream brings them: by processor time, and by the wall's."""
    session = LogSession(catalogue, source="bench")
    wall, processor = time.perf_counter(), time.process_time()
    for position in range(0, len(data), CHUNK):
        session.feed(data[position : position + CHUNK])
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return round(len(data) / 1e6 / processor, 1), round(len(data) / 1e6 / wall, 1)


def main() -> int:
    catalogue = load_catalogue()
    report = Report("log-scan", "log scanning with the whole catalogue, per second of one core")
    report.add(unit="MB/s", bytes=SIZE)
    for name, (lines, budget) in KINDS.items():
        data = log(lines)
        passes = [megabytes_a_second(catalogue, data) for _ in range(RUNS)]
        core, wall = ([one[place] for one in passes] for place in (0, 1))
        what = f"{name}, slowest of {RUNS} (by the wall clock {min(wall):.0f} to {max(wall):.0f})"
        report.row(what, min(core), "MB/s", budget, least=True)
        report.add(**{name: {"budget": budget, "worst": min(core), "raw": core, "raw_by_wall_clock": wall}})
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
