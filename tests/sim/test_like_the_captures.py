"""The stand-in against captures of real servers: metrics and log lines must be of the same kind."""

from __future__ import annotations

import gzip
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.standin import CAPTURES, Standin

SAMPLE = re.compile(r"^([^{ ]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """A parsed answer: TYPE and HELP by family, label names and bucket edges by sample name, order of
    families."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.labels: dict[str, set[tuple[str, ...]]] = {}
        self.edges: dict[str, list[str]] = {}
        self.values: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
            if line.startswith("# HELP "):
                _, _, name, help_text = line.split(" ", 3)
                self.helps[name] = help_text
            elif line.startswith("# TYPE "):
                self.types[line.split(" ")[2]] = line.split(" ")[3]
            else:
                self._sample(line)

    def _sample(self, line: str) -> None:
        found = SAMPLE.match(line)
        assert found, line
        name, text, value = found.groups()
        pairs = LABEL.findall(text or "")
        self.labels.setdefault(name, set()).add(tuple(key for key, _ in pairs))
        self.values[(name, text or "")] = float(value)
        for key, edge in pairs:
            if key == "le":
                edges = self.edges.setdefault(name, [])
                if edge not in edges:
                    edges.append(edge)


def exercised(*args: str) -> str:
    """The metrics of a stand-in that has answered what the captured server had answered."""
    with Standin("tiny", *args) as sim:
        sim.ready()
        sim.complete(3)
        sim.complete(3, stream=True)
        sim.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
        sim.request("POST", "/v1/completions", "{")
        sim.get("/v1/nothing")
        return sim.get("/metrics")[1]


@pytest.mark.parametrize(("version", "capture"), [("0.32.0", "cpu032_05_after_4xx"), ("0.25.1", "h200_025_base_after")])
def test_metrics_have_the_families_labels_help_and_buckets_of_a_real_server(version: str, capture: str) -> None:
    real = Scrape((CAPTURES / "metrics" / f"{capture}.prom").read_text())
    ours = Scrape(exercised("--sim-vllm-version", version))
    assert list(ours.types) == list(real.types)
    assert ours.types == real.types
    assert ours.helps == real.helps
    assert ours.labels == real.labels
    assert ours.edges == real.edges


def test_idle_metrics_are_those_of_a_real_idle_server() -> None:
    real = Scrape((CAPTURES / "metrics" / "cpu032_01_idle_before_first_request.prom").read_text())
    with Standin("tiny") as sim:
        ours = Scrape(sim.ready().get("/metrics")[1])
    assert ours.types == real.types
    assert ours.labels == real.labels

    def states(scrape: Scrape) -> set[tuple[str, str]]:
        return {k for k in scrape.values if k[0].startswith("vllm:") and k[0] != "vllm:cache_config_info"}

    assert states(ours) == states(real)


def test_histograms_are_cumulative_and_agree_with_their_count() -> None:
    scrape = Scrape(exercised())
    for name in (n for n, kind in scrape.types.items() if kind == "histogram"):
        rows: dict[str, list[float]] = {}
        for (sample, labels), value in scrape.values.items():
            if sample == f"{name}_bucket":
                key = ",".join(part for part in labels.split(",") if not part.startswith("le="))
                rows.setdefault(key, []).append(value)
        for key, counts in rows.items():
            assert counts == sorted(counts), name
            assert counts[-1] == scrape.values[(f"{name}_count", key)], name
            assert (f"{name}_sum", key) in scrape.values
            assert (f"{name}_created", key) in scrape.values


# --- log lines

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
#: Of vLLM's source, but in no capture: the device check, loading and allocation that fail, draining.
UNCAPTURED = (
    "in init_device",
    "in request_memory",
    "in load_model",
    "in initialize_from_config",
    "self.requested_memory = request_memory",
    "self.model_runner.load_model()",
    "self.model = model_loader.load_model(",
    "self.model_runner.initialize_kv_cache",
    "self.model_executor = executor_class",
    "^^^^^^^^^^^",
    "Failed to load model - not enough GPU memory",
    "Free memory on device",
    "No available memory for the cache blocks",
    "draining in-flight requests",
    "torch.OutOfMemoryError",
)


def kind(line: str) -> str:
    """A line without what differs from run to run: numbers, processes, addresses, names, long
    representations."""
    line = re.sub(r"^\((APIServer|EngineCore) pid=\d+\) (?=INFO:|\[rank)", "", line)
    line = re.sub(r"/tmp/tmp\w+\.ptx", "/tmp/T.ptx", line)
    line = re.sub(r"(model|tokenizer)(=?\W+)/?[\w/-]+", r"\1\2M", line)
    line = re.sub(r"(with config: |SchedulerOutput\(|SchedulerStats\(|non-default args: ).*", r"\1…", line)
    line = re.sub(r"(Repro command: |Command '\[')[^' ]+", r"\1P", line)
    line = re.sub(r"(http://)[\w.]+", r"\1H", line).replace("CPU KV cache", "GPU KV cache")
    line = re.sub(r'"(GET|POST|DELETE) \S+ HTTP', '"\\1 P HTTP', line)
    line = re.sub(r"/(?:usr|root)/\S*?python\d[\d.]*", "/L", line)
    line = re.sub(r"took \S+ GiB(?: memory)? and", "took N GiB and", line)
    line = re.sub(r"(?:\d+:)+\d+[<,?]?", "C", line)
    line = re.sub(r"sm_\w+", "sm", line)
    line = re.sub(r"\.\.\.$", "", line)
    return NUMBER.sub("N", line).rstrip()[:250]


@pytest.fixture(scope="module")
def templates() -> set[str]:
    found: set[str] = set()
    for path in (CAPTURES / "logs").iterdir():
        if path.suffix == ".yaml":
            continue
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found.update(kind(line) for line in data.decode(errors="replace").split("\n"))
    return found


def oom_run() -> str:
    with Standin("--fault", "oom-above=2", "--sim-stats-seconds", "0.2") as sim:
        sim.ready()
        sim.complete(40)
        sim.burst(3, stream=True)
        sim.burst(3)
        sim.exit()
        return sim.log


def killed_run() -> str:
    with Standin("--sim-step-seconds", "0.05") as sim:
        sim.ready()
        thread = threading.Thread(target=lambda: sim.burst(4, 100, stream=True))
        thread.start()
        time.sleep(0.5)
        os.kill(sim.engine(), signal.SIGKILL)
        sim.exit()
        thread.join()
        return sim.log


def stopped_run() -> str:
    with Standin("--max-model-len", "1024") as sim:
        sim.ready()
        sim.complete(3)
        sim.terminate()
        return sim.log


def hung_run() -> str:
    env = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "0.4"}
    with Standin("--fault", "hang", "--sim-hang-notice", "0.1", env=env) as sim:
        sim.ready()
        sim.burst(1)
        sim.exit()
        return sim.log


def failed_runs() -> Iterator[str]:
    for args in (
        ("--fault", "kv-too-small"),
        ("--fault", "ptxas"),
        ("--max-concurrent-requests", "5"),
        ("--max-num-seqs", "0"),
        ("--fault", "oom-neighbour=40@start"),
        ("--sim-weights-gib", "90"),
        ("--kv-cache-memory-bytes", "79G"),
    ):
        with Standin(*args) as sim:
            sim.exit()
            yield sim.log


def test_every_log_line_is_of_a_kind_that_a_real_server_printed(templates: set[str]) -> None:
    logs = [oom_run(), killed_run(), stopped_run(), hung_run(), *failed_runs()]
    strange = {
        line
        for log in logs
        for line in log.split("\n")
        if kind(line) not in templates and not any(text in line for text in UNCAPTURED)
    }
    assert not strange, "\n".join(sorted(strange)[:40])


def test_version_025_prefixes_the_lines_of_its_http_server(tmp_path: Path) -> None:
    del tmp_path
    with Standin("--sim-vllm-version", "0.25.1") as sim:
        sim.ready()
        assert re.search(r"\(APIServer pid=\d+\) INFO:     Application startup complete\.", sim.log)
        assert re.search(r"\(EngineCore pid=\d+\) INFO .*\] GPU KV cache size: [\d,]+ tokens\n", sim.log)
