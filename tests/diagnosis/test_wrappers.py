"""The same words in whatever coat a platform puts around them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from agent.model import Confidence, Mechanism, MemoryFacts
from tests.diagnosis.logs import causes, first, loud

READY = "(APIServer pid=1) INFO:     Application startup complete."
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity "
    "of 139.80 GiB of which 887.12 MiB is free. Including non-PyTorch memory, this process has 138.92 GiB "
    "memory in use. Of the allocated memory 136.40 GiB is allocated by PyTorch, and 1.76 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OCCUPIED = (
    "ValueError: Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 19.84 GiB)."
)
PREFIXES = {
    "v1-engine": "(EngineCore pid=845) ERROR 05-12 16:48:53 [core.py:1131] ",
    "v1-engine-dp": "(EngineCore_DP0 pid=845) ERROR 05-12 16:48:53 [v1/engine/core.py:842] ",
    "worker-tp": "(Worker_TP1 pid=292) ERROR 11-07 16:35:40 [multiproc_executor.py:654] ",
    "worker-rank": "(VllmWorker rank=7 pid=82779) ERROR 03-18 12:53:27 [multiproc_executor.py:375] ",
    "worker-v0": "(VllmWorkerProcess pid=3580472) ERROR 01-27 05:48:23 multiproc_worker_utils.py:233] ",
    "ray": "(RayWorkerWrapper pid=1882, ip=192.0.2.11) ERROR 06-22 21:11:16 worker_base.py:148] ",
    "v0": "ERROR 11-30 20:09:42 engine.py:366] ",
    "rank": "[rank0]: ",
    "two-processes": "(APIServer pid=548) (EngineCore pid=680) ERROR 11-30 16:15:44 [core.py:1364] ",
    "logger": "2025-11-12 23:44:29,315 - vllm.v1.engine.core - ERROR - ",
    "bare": "",
}
COATS: dict[str, Callable[[str], str]] = {
    "none": lambda line: line,
    "compose": lambda line: f"vllm-openai_1  | {line}",
    "compose-v2": lambda line: f"vllm-1  | {line}",
    "kubectl": lambda line: f"[pod/vllm-0/vllm] {line}",
    "cri": lambda line: f"2026-03-13T10:47:41.123456789Z stderr F {line}",
    "docker-json": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-03-13T10:47:41Z"}),
    "vllm-json": lambda line: json.dumps({"message": line, "levelname": "ERROR"}),
    "json-not-ascii": lambda line: json.dumps({"message": line, "levelname": "ERROR"}, ensure_ascii=False),
    "gke": lambda line: f"INFO 2025-12-05T14:59:48.096674521Z [resource.labels.containerName: vllm] {line}",
    "iso": lambda line: f"[2026-03-13T10:47:41Z] {line}",
    "journald": lambda line: f"Nov 30 16:13:54 node7 vllm[548]: {line}",
    "ansi": lambda line: f"\x1b[1;36m{line}\x1b[0;0m",
    "borders": lambda line: f"│ {line}      │",
    "double-error": lambda line: f"ERROR:    {line}",
    "carriage-return": lambda line: f"progress 10%\r{line}\r",
    "crlf": lambda line: f"{line}\r",
    "nul": lambda line: f"\0{line}\0",
    "binary-beside": lambda line: f"\x80\x81 {line}",
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("coat", COATS)
def test_an_oom_is_read_with_its_numbers(coat: str, prefix: str) -> None:
    log = "\n".join(COATS[coat](line) for line in (READY, PREFIXES[prefix] + OOM)) + "\n"
    cause = causes(log)[0]
    assert cause.finding.fault == "oom-serving"
    assert cause.finding.mechanism is Mechanism.FRAGMENTATION
    assert isinstance(cause.facts, MemoryFacts)
    assert cause.facts.reserved_unallocated_bytes == round(1.76 * (1 << 30))


@pytest.mark.parametrize("coat", COATS)
@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("kv-cache-none", "ValueError: No available memory for the cache blocks. Try increasing it."),
        (
            "kv-cache-too-small",
            "ValueError: To serve at least one request with the models's max seq len (262144)",
        ),
        ("triton-ptxas", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"),
        ("port-in-use", "OSError: [Errno 98] Address already in use"),
        ("config-invalid", "vllm: error: unrecognized arguments: --max-concurrent-requests 5"),
        ("model-not-found", "OSError: a/b is not a local folder and is not a valid model identifier"),
        ("host-oom-kill", "Memory cgroup out of memory: Killed process 4242 (VLLM::Worker)"),
        ("engine-dead", "RuntimeError: Engine core initialization failed. See root cause above."),
        ("engine-hang", "TimeoutError: RPC call to execute_model timed out."),
        ("gpu-memory-occupied", OCCUPIED),
    ],
)
def test_every_class_is_read_in_every_coat(coat: str, fault: str, line: str) -> None:
    assert first(COATS[coat](line) + "\n").fault == fault


@pytest.mark.parametrize("coat", sorted(set(COATS) - {"vllm-json", "json-not-ascii"}))  # these state a level
def test_a_warning_that_quotes_an_error_is_context_in_every_coat(coat: str) -> None:
    line = (
        "(APIServer pid=548) WARNING 11-30 16:13:54 [system_utils.py:299] Found ulimit: this can cause "
        "`OSError: [Errno 98] Address already in use` or CUDA out of memory. Tried to allocate 1.00 GiB."
    )
    assert loud(COATS[coat](line) + "\n") == []


def test_a_json_record_carries_its_traceback() -> None:
    record = {
        "levelname": "ERROR",
        "message": "EngineCore failed to start.",
        "exc_info": f"Traceback:\n  x\n{OOM}",
    }
    finding = first(json.dumps(record) + "\n")
    assert finding.fault.startswith("oom-") and finding.confidence is not Confidence.CERTAIN
