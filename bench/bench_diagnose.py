"""``agent diagnose`` as a whole command on a real server's log: an H200 that ran out of memory, 4 MB.

In: the capture, packed and plain. Out: wall seconds, CPU seconds and peak memory of ten runs each; the budget of
0.5 s is beside reading, so ``cat`` of the same file is shown too. The exit code must say critical, or the figure
would be that of a command that failed.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

from frame import LOGS, Report, compiled, cost, scratch, spread

RUNS = 10
CRITICAL = 2


def main() -> int:
    report = Report("diagnose", "agent diagnose on a 4 MB log of an H200")
    with scratch() as folder:
        plain = Path(folder) / "h200.log"
        packed = LOGS / "h200_oom_serving.log.gz"
        plain.write_bytes(gzip.decompress(packed.read_bytes()))
        environment = compiled(folder)
        report.add(bytes=plain.stat().st_size, read_seconds=cost(["cat", str(plain)]).seconds)
        for name, path in (("plain", plain), ("gzip", packed)):
            argv = [sys.executable, "-m", "agent", "diagnose", "--log", str(path)]
            runs = [cost(argv, env=environment) for _ in range(RUNS + 1)][1:]
            assert all(run.code == CRITICAL for run in runs), "diagnose did not name the fault"
            seconds = [run.seconds for run in runs]
            report.row(f"agent diagnose, {name}, median of {RUNS}", spread(seconds)["p50"], "s", 0.5)
            report.row(f"agent diagnose, {name}, peak memory", max(run.rss_mib for run in runs), "MiB")
            report.add(**{name: {**spread(seconds), "raw": [vars(run) for run in runs]}})
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
