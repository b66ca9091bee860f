"""What one scrape costs from bytes to samples, what the store holds, and what a snapshot costs.

In: the captures of real ``/metrics`` answers, and answers made of one of them in which values move, with one to four
engines. Out: processor milliseconds a scrape (median and worst of the rounds), resident megabytes of a full store, and
milliseconds, bytes and the blocking part of a snapshot. Budget: 1 ms for reading an answer of 500 to 1,500 samples once
its series are known. The first answer, and the one after other rules came, cost more and have no budget.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import frame
import psutil

from agent.series import (
    Labels,
    Match,
    Matcher,
    Need,
    Reader,
    Selection,
    Store,
    capture_snapshot,
    restore_snapshot,
    write_snapshot,
)

METRICS = frame.ROOT / "tests" / "data" / "captures" / "metrics"
BUSY = METRICS / "cpu032_07_kv_pressure_t4.prom"
TARGET = {"job": "vllm", "instance": "127.0.0.1:8000"}
T0 = 1_700_000_000_000
WINDOW_MS = 900_000
SERIES = 300
ROUNDS = 200


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Processor milliseconds of each round."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1000)
    return taken


def engines(text: str, count: int) -> str:
    """The answer of a server with that many engines: every series with an engine label, once for each."""
    lines = text.splitlines()
    more = [
        line.replace('engine="0"', f'engine="{engine}"')
        for engine in range(1, count)
        for line in lines
        if 'engine="0"' in line
    ]
    return "\n".join(lines + more) + "\n"


def moved(text: str, tick: int) -> bytes:
    """The same answer with two of three values moved."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if line[0] != "#" and place % 3:
            key, _, value = line.rpartition(" ")
            lines[place] = f"{key} {float(value) + tick * (place % 7 + 0.5)}"
    return "\n".join(lines).encode() + b"\n"


def reading(report: frame.Report) -> None:
    """Every capture, and up to four engines, with all series wanted: the dearest case."""
    text = BUSY.read_text()
    answers = {path.stem: path.read_bytes() for path in sorted(METRICS.glob("*.prom"))}
    answers |= {f"{count} engines": engines(text, count).encode() for count in (2, 3, 4)}
    for name, body in answers.items():
        reader: Reader[Labels] = Reader(lambda labels: labels)
        first = milliseconds(lambda reader=reader, body=body: reader.read(body), 1)[0]  # type: ignore[misc]
        taken = milliseconds(lambda reader=reader, body=body: reader.read(body))  # type: ignore[misc]
        samples = reader.read(body).lines
        inside = 500 <= samples <= 1500
        report.row(
            f"read {name}, {samples} samples (first {first:.1f} ms)",
            statistics.median(taken),
            "ms",
            1 if inside else None,
        )
        report.add(**{f"read {name}": {"samples": samples, "first": first, "raw": taken}})


def selection(text: str) -> Selection:
    """Whole families of ``vllm:*`` until there are about 300 series."""
    sizes: dict[str, int] = {}
    for name in re.findall(r"(?m)^(vllm:\w+)\{", text):
        sizes[name] = sizes.get(name, 0) + 1
    needs, total = [], 0
    for name, size in sizes.items():
        if total + size <= SERIES:
            needs.append(Need((Matcher("__name__", Match.EQUAL, name),), WINDOW_MS))
            total += size
    return Selection(needs)


def storing(report: frame.Report, label: str, every_ms: int, folder: Path) -> None:
    """Fill a store over its whole window, then a tick, its memory and its snapshot."""
    text = BUSY.read_text()
    bodies = [moved(text, tick) for tick in range(300)]
    process = psutil.Process()
    before = process.memory_info().rss
    store = Store(selection(text), target=TARGET)
    ticks = (WINDOW_MS + 600_000) // every_ms
    taken = []
    for tick in range(ticks):
        began = time.process_time()
        store.scraped(bodies[tick % len(bodies)], "text/plain", at_ms=T0 + tick * every_ms, seconds=0.01)
        taken.append((time.process_time() - began) * 1000)
    megabytes = (process.memory_info().rss - before) / 1e6
    samples = sum(len(series.times) for series in store)
    report.row(f"{label}: one scrape into the store, {len(store)} series kept", statistics.median(taken), "ms")
    report.row(f"{label}: the worst scrape (a round of trimming)", max(taken[10:]), "ms")
    report.row(f"{label}: resident, 15 m windows + lookback, {samples} samples", megabytes, "MB")
    report.add(**{label: {"series": len(store), "samples": samples, "rss_mb": megabytes, "raw_ms": taken}})
    snapshot(report, label, store, folder / label, T0 + ticks * every_ms)


def snapshot(report: frame.Report, label: str, store: Store, path: Path, now_ms: int) -> None:
    copies = milliseconds(lambda: capture_snapshot(store, now_ms=now_ms), 10)
    image = capture_snapshot(store, now_ms=now_ms)
    writes = milliseconds(lambda: write_snapshot(path, image), 5)
    again = Store(selection(BUSY.read_text()), target=TARGET)
    began = time.process_time()
    restored = restore_snapshot(path, again, now_ms=now_ms)
    restoring = (time.process_time() - began) * 1000
    assert restored.notice is None and restored.series == len(store), restored
    report.row(f"{label}: snapshot, the copy (blocks the loop)", statistics.median(copies), "ms")
    report.row(f"{label}: snapshot, packing and writing (in a thread)", statistics.median(writes), "ms")
    report.row(f"{label}: snapshot on disk", path.stat().st_size / 1e6, "MB")
    report.row(f"{label}: restoring", restoring, "ms")
    report.add(**{f"{label} snapshot": {"copy_ms": copies, "write_ms": writes, "bytes": path.stat().st_size}})


def main() -> int:
    report = frame.Report("series", "the exposition parser and the store, processor time of one core")
    reading(report)
    with tempfile.TemporaryDirectory() as folder:
        storing(report, "1 s", 1000, Path(folder))
        storing(report, "250 ms", 250, Path(folder))
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
