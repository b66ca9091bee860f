"""From a metric over its threshold to the notification, in one run with the real Prometheus and Alertmanager.

In: one target of about 1,500 series, the whole pack of rules and one rule more (``for: 0s``), the agent at 1 s and at
250 ms polling, and Prometheus (scrape and evaluation 1 s) with Alertmanager (no grouping wait), one after the other,
each started anew several times because the phase of a scrape is fixed per start. Out: seconds from the moment the gauge
is set to the arrival of the POST, processor and memory of each, and the ratios.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
from frame import ROOT, Report, compiled, free_port, scratch, spread

from tests.support.supervised import fetch, wait_until

STARTS, TRIALS, SETTLE_SECONDS = 3, 12, 12.0
RULE = """groups:
- name: bench
  rules:
  - alert: BenchQueue
    expr: vllm:num_requests_waiting > 100
    labels: {severity: warning}
    annotations: {summary: The queue of the benchmark is long, runbook_url: "https://example.invalid/BenchQueue"}
"""
PROMETHEUS_3 = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-agent" / "prometheus-3"


class Arrivals:
    """A webhook's receiver: the moment (monotonic) at which each firing notification came."""

    def __init__(self) -> None:
        self.fired: list[float] = []
        arrivals = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                now = time.monotonic()
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = [one["labels"]["alertname"] for one in payload["alerts"] if one["status"] == "firing"]
                if payload["status"] == "firing" and "BenchQueue" in names:
                    arrivals.fired.append(now)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait(self, since: float, seconds: float = 30.0) -> float:
        """Seconds from ``since`` to the first arrival after it."""
        return wait_until(seconds, "a notification", lambda: [at for at in self.fired if at > since])[0] - since


def main() -> int:
    report = Report("alerting", "threshold → notification, beside Prometheus and Alertmanager")
    arrivals = Arrivals()
    with scratch() as name, ExitStack() as stack:
        folder = Path(name)
        port = free_port()
        stack.enter_context(process([sys.executable, str(ROOT / "bench" / "alerting_target.py"), str(port)]))
        target = f"http://127.0.0.1:{port}"
        wait_until(10, "the target", lambda: _answers(f"{target}/health"))
        (folder / "bench.yaml").write_text(RULE)
        runs: dict[str, list[Run]] = {"agent at 1 s": [], "agent at 250 ms": [], "prometheus at 1 s": []}
        for number in range(STARTS):
            begin: dict[str, Callable[[Path], Started]] = {
                "agent at 1 s": lambda place: agent(place, folder, target, 1.0, arrivals.url),
                "agent at 250 ms": lambda place: agent(place, folder, target, 0.25, arrivals.url),
                "prometheus at 1 s": lambda place: prometheus(place, folder, port, arrivals.url),
            }
            for who, start in begin.items():
                place = folder / f"{who.replace(' ', '-')}-{number}"
                place.mkdir()
                runs[who].append(measure(target, arrivals, start(place)))
    show(report, runs)
    report.done()
    return 0


class Run:
    """One start: the latencies, and what each process cost."""

    def __init__(self, seconds: list[float], percent: dict[str, float], resident: dict[str, float]) -> None:
        self.seconds, self.percent, self.resident = seconds, percent, resident


class Started:
    """Processes by name; the first one is what is measured."""

    def __init__(self, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def stop(self) -> None:
        for one in self.processes.values():
            one.terminate()
        for one in self.processes.values():
            one.wait(20)


def measure(target: str, arrivals: Arrivals, started: Started) -> Run:
    """Cross the threshold at random moments; processor is taken over the whole time after the start."""
    try:
        time.sleep(SETTLE_SECONDS)
        watched = {who: psutil.Process(one.pid) for who, one in started.processes.items()}
        before = {who: _used(one) for who, one in watched.items()}
        begun = time.monotonic()
        seconds = []
        for _ in range(TRIALS):
            time.sleep(1.5 + random.random())
            at = time.monotonic()
            fetch(f"{target}/set?value=500")
            seconds.append(arrivals.wait(at))
            fetch(f"{target}/set?value=0")
            time.sleep(1.2)
        took = time.monotonic() - begun
        percent = {who: (_used(one) - before[who]) / took * 100 for who, one in watched.items()}
        resident = {who: one.memory_info().rss / 2**20 for who, one in watched.items()}
        return Run(seconds, percent, resident)
    finally:
        started.stop()
        fetch(f"{target}/set?value=0")


def agent(place: Path, folder: Path, target: str, poll: float, hook: str) -> Started:
    """A watcher attached to the target; its notifications go straight to the receiver."""
    config = place / "agent.yaml"
    config.write_text(
        f"listen: 127.0.0.1:{free_port()}\nstate_dir: {place / 'state'}\npoll_seconds: {poll}\n"
        f"rules: {{paths: [{folder / 'bench.yaml'}]}}\n"
    )
    environment = {**compiled(str(folder / "bytecode")), "ALERT_WEBHOOK_URL": hook}
    command = [sys.executable, "-m", "agent", "watch", "--url", target, "--config", str(config)]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)
    return Started({"watcher": process})


def prometheus(place: Path, folder: Path, port: int, hook: str) -> Started:
    """The newest Prometheus that is installed, with the exported pack, and Alertmanager."""
    pack = subprocess.run(
        [sys.executable, "-m", "agent", "rules", "export", "--format", "prometheus"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    (place / "pack.yaml").write_bytes(pack.stdout)
    web, manager = free_port(), free_port()
    (place / "am.yml").write_text(
        "route: {receiver: hook, group_by: ['...'], group_wait: 0s, group_interval: 1s}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: '{hook}'}}]}}]\n"
    )
    (place / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{place / 'pack.yaml'}', '{folder / 'bench.yaml'}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{manager}']}}]}}]}}\n"
        # A job name of its own for each start gives each start a phase of its own.
        f"scrape_configs: [{{job_name: vllm{random.randrange(10**6)}, "
        f"static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    programs = {
        "prometheus": [binary("prometheus"), f"--config.file={place / 'prometheus.yml'}",
                       f"--storage.tsdb.path={place / 'tsdb'}", f"--web.listen-address=127.0.0.1:{web}"],
        "alertmanager": [binary("prometheus-alertmanager"), f"--config.file={place / 'am.yml'}",
                         f"--storage.path={place / 'am'}", f"--web.listen-address=127.0.0.1:{manager}",
                         "--cluster.listen-address="],
    }  # fmt: skip
    started = {}
    for name, command in programs.items():
        with (place / f"{name}.log").open("wb") as log:
            started[name] = subprocess.Popen(command, stdout=log, stderr=log)
    wait_until(30, "Prometheus", lambda: _answers(f"http://127.0.0.1:{web}/-/ready"))
    return Started(started)


def binary(name: str) -> str:
    """Prometheus 3 where it is installed, else what PATH has."""
    newest = PROMETHEUS_3 / "usr" / "bin" / name
    found = str(newest) if newest.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed: run tests/support/install_prometheus.sh")
    return found


def show(report: Report, runs: dict[str, list[Run]]) -> None:
    budgets = {"agent at 1 s": (0.55, 1.1, 0.7), "agent at 250 ms": (0.2, 0.35, None)}
    middle: dict[str, float] = {}
    for who, starts in runs.items():
        seconds = sorted(value for run in starts for value in run.seconds)
        p50, p99, share = budgets.get(who, (None, None, None))
        middle[who] = statistics.median(seconds)
        worst = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
        report.row(f"{who}: threshold → notification, p50 of {len(seconds)}", middle[who], "s", p50)
        report.row(f"{who}: threshold → notification, p99", worst, "s", p99)
        for name in starts[0].percent:
            report.row(f"{who}: {name}", max(run.percent[name] for run in starts), "% of a core", share)
            limit = 64 if name == "watcher" else None
            report.row(f"{who}: {name}, resident", max(run.resident[name] for run in starts), "MiB", limit)
        report.add(**{who.replace(" ", "_"): {
            "seconds": [round(value, 4) for run in starts for value in run.seconds],
            "spread": spread(seconds),
            "percent_of_a_core": [run.percent for run in starts],
            "resident_mib": [run.resident for run in starts],
        }})  # fmt: skip
    for who in ("agent at 1 s", "agent at 250 ms"):
        ratio = middle["prometheus at 1 s"] / middle[who]
        report.row(f"Prometheus and Alertmanager ÷ {who}, p50", ratio, "times")
    version = subprocess.run([binary("prometheus"), "--version"], capture_output=True, text=True, check=False)
    report.add(prometheus=(version.stdout or version.stderr).splitlines()[0])


@contextmanager
def process(command: list[str]) -> Iterator[None]:
    one = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        one.kill()
        one.wait()


def _used(one: psutil.Process) -> float:
    times = one.cpu_times()
    return float(times.user + times.system)


def _answers(url: str) -> bool:
    try:
        fetch(url)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
