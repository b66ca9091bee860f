"""The agent beside tools of other people for the same job, in turns, on the same log and the same stand-in.

In: packages from PyPI in a virtual environment of their own under the cache folder (never in .venv). Out: seconds
and peak memory of each, and the ratio to the agent's: its command's start, its answer on one log, its cost while it
watches. A peer that cannot be installed is said so, and nothing is shown in its place.

The jobs are the same, the tools are not: ``inferguard classify-failures`` reads a folder of job evidence, here the
log in the layout it expects; ``vllm-doctor --watch`` looks every 5 s, so the agent is set to 5 s beside it.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from frame import LOGS, Cost, Report, compiled, cost, free_port, scratch, spread, target

PEERS = ("vllm-doctor==0.6.0", "inferguard==0.7.4", "fbc-cache-lint==0.1.0")
PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-agent" / "bench-peers"
RUNS = 7
WATCH_SECONDS = 40.0
LOG = "h200_oom_serving.log.gz"


def install() -> str | None:
    """Make the peers' environment; the reason where it cannot be made."""
    done = PLACE / "installed"
    if done.exists() and done.read_text().split() == list(PEERS):
        return None
    steps = ([sys.executable, "-m", "venv", str(PLACE)], [str(PLACE / "bin" / "pip"), "install", "--quiet", *PEERS])
    for step in steps:
        try:
            result = subprocess.run(step, capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if result.returncode:
            return (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    done.write_text("\n".join(PEERS))
    return None


def peer(name: str) -> str:
    return str(PLACE / "bin" / name)


def compare(report: Report, what: str, commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> None:
    """Run all in turns; the agent comes first in ``commands`` and is what the others are divided by."""
    runs: dict[str, list[Cost]] = {name: [] for name in commands}
    for number in range(RUNS + 1):
        for name, argv in commands.items():
            run = cost(argv, env=environment)
            if number:  # the first one makes the bytecode
                runs[name].append(run)
    base = spread([run.seconds for run in next(iter(runs.values()))])["p50"]
    for name, raw in runs.items():
        seconds = spread([run.seconds for run in raw])
        memory = max(run.rss_mib for run in raw)
        report.row(f"{what}: {name}, median of {RUNS}", seconds["p50"], "s")
        report.note(f"    {seconds['p50'] / base:.1f} times the agent's; peak {memory:.0f} MiB; exit {raw[0].code}")
        figures = {**spread([run.seconds for run in raw]), "ratio": round(seconds["p50"] / base, 2)}
        report.add(**{f"{what}, {name}": {**figures, "rss_mib": memory, "raw": [vars(run) for run in raw]}})


def answers(report: Report, folder: Path, environment: Mapping[str, str]) -> None:
    """The same log to those that read logs; what each names is printed, since speed alone is no answer."""
    job = folder / "job"
    (job / "launch").mkdir(parents=True)
    log = job / "launch" / "stdout.log"
    log.write_bytes(gzip.decompress((LOGS / LOG).read_bytes()))
    agent = [sys.executable, "-m", "agent", "diagnose", "--output", "json", "--log", str(log)]
    other = [peer("inferguard"), "classify-failures", "--job-dir", str(job), "--output-dir", str(folder / "out")]
    compare(report, "one 4 MB log", {"agent diagnose": agent, "inferguard": other}, environment)
    said = subprocess.run(agent, capture_output=True, text=True, env=dict(environment)).stdout
    ours = [finding["class"] for finding in json.loads(said)["findings"]]
    listed = json.loads((folder / "out" / "failure_classification.json").read_text(encoding="utf-8"))["failures"]
    theirs = [failure["class"] for failure in listed]
    report.note(f"    the agent names {', '.join(ours)}; inferguard {', '.join(theirs)}, the first first")
    report.add(named={"agent": ours, "inferguard": theirs})


def watching(report: Report, folder: Path, environment: Mapping[str, str]) -> None:
    """Both watch one stand-in at the same time, every 5 s."""
    settings = folder / "five.json"
    settings.write_text(json.dumps({"poll_seconds": 5.0}), encoding="utf-8")
    with target(folder / "server", watcher=False) as server:
        server.wait_healthy(60)
        ours = [sys.executable, "-m", "agent", "watch", "--url", server.url, "--config", str(settings)]
        ours += ["--listen", f"127.0.0.1:{free_port()}", "--state-dir", str(folder / "state")]
        theirs = [peer("vllm-doctor"), "diagnose", "--watch", f"{server.url}/metrics"]
        processes = {
            name: subprocess.Popen(argv, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name, argv in (("agent watch", ours), ("vllm-doctor --watch", theirs))
        }
        try:
            time.sleep(8)
            shown = {name: psutil.Process(process.pid) for name, process in processes.items()}
            before = {name: sum(process.cpu_times()[:2]) for name, process in shown.items()}
            time.sleep(WATCH_SECONDS)
            for name, process in shown.items():
                percent = (sum(process.cpu_times()[:2]) - before[name]) / WATCH_SECONDS * 100
                resident = process.memory_info().rss / 2**20
                report.row(f"watching every 5 s: {name}", percent, "% of a core")
                report.row(f"watching every 5 s: {name}, resident", resident, "MiB")
                report.add(**{f"watching, {name}": {"percent_of_a_core": percent, "resident_mib": resident}})
        finally:
            for started in processes.values():
                started.terminate()
                started.wait(30)


def main() -> int:
    report = Report("peers", "beside other tools: " + ", ".join(PEERS))
    reason = install()
    if reason is not None:
        report.note(f"not measured, the peers cannot be installed here: {reason}")
        report.add(not_measured=reason)
        report.done()
        return 0
    with scratch() as name:
        folder, environment = Path(name), compiled(f"{name}/bytecode")
        starts = {"agent diagnose": [sys.executable, "-m", "agent", "diagnose", "--help"]}
        starts.update({tool: [peer(tool), "--help"] for tool in ("vllm-doctor", "inferguard", "fbc-cache-lint")})
        compare(report, "start (--help)", starts, environment)
        answers(report, folder, environment)
        watching(report, folder, environment)
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
