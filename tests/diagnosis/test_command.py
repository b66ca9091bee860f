"""``agent diagnose``: exit codes, outputs, sources, and clear errors."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from agent.diagnose.schema import diagnosis_schema
from tests.diagnosis.logs import CAPTURES, capture

HEALTHY = str(CAPTURES / "h200_base.log")
OOM = str(CAPTURES / "h200_oom_serving.log.gz")


def run(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "agent", "diagnose", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=50, check=False, env=env)


WAIT = (
    b"INFO:     Application startup complete.\n(EngineCore pid=7) INFO 01-01 10:01:00 [shm_broadcast.py:430] "
    b"No available shared memory broadcast block found in 60 seconds.\n"
)
RECOVERED = b"ptxas fatal   : Value 'sm_121a' is not defined for option\nINFO:     Application startup complete.\n"


@pytest.mark.parametrize(
    ("log", "fail_on", "code"),
    [
        (b"INFO:     Application startup complete.\n", "warning", 0),
        (b"INFO:     Application startup complete.\n", "info", 0),
        (RECOVERED, "warning", 0),
        (RECOVERED, "info", 1),
        (WAIT, "warning", 1),
        (WAIT, "critical", 0),
        (b"OSError: [Errno 98] Address already in use\n", "critical", 2),
        (b"hello\n", "critical", 3),
        (b"", "warning", 3),
    ],
)
def test_exit_codes(log: bytes, fail_on: str, code: int) -> None:
    assert run("--log", "-", "--fail-on", fail_on, stdin=log).returncode == code


def test_json_alone_on_stdout_and_to_the_schema() -> None:
    done = run("--log", OOM, "--output", "json")
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, diagnosis_schema())
    assert done.returncode == 2 and done.stderr == b""
    assert answer["findings"][0]["class"] == "oom-serving"
    assert answer["findings"][0]["mechanism"] == "neighbour"
    assert answer["findings"][0]["runbook"] is None or answer["findings"][0]["runbook"].startswith("runbooks/faults/")
    assert answer["window_seconds"] > 10
    assert answer["not_measured"]


def test_text_puts_the_cause_first() -> None:
    lines = run("--log", OOM).stdout.decode().splitlines()
    assert lines[0] == "CRITICAL  oom-serving (neighbour)  [certain]"
    assert "\x1b" not in "".join(lines)
    assert any(line.startswith("Verdict: critical") for line in lines)


def test_markdown_is_a_document() -> None:
    assert run("--log", HEALTHY, "--output", "markdown").stdout.startswith(b"# Diagnosis: healthy")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to diagnose"),
        (("--log", "/nowhere.log"), "no such file"),
        (("--log", "/"), "is a folder"),
        (("--log", HEALTHY, "--output", "yaml"), "--output yaml"),
        (("--log", HEALTHY, "--fail-on", "never"), "--fail-on never"),
        (("--log", "-", "--log", "-"), "given twice"),
        (("--lgo", HEALTHY), "No such option"),
    ],
)
def test_a_mistake_of_the_caller_is_64_without_a_traceback(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 64
    assert done.stdout == b""
    assert words in done.stderr.decode() and "Traceback" not in done.stderr.decode()


def test_gzip_is_read_from_a_pipe_too(tmp_path: Path) -> None:
    data = gzip.compress(capture("h200_kv_too_small.log"))
    assert run("--log", "-", stdin=data).returncode == 2
    cut = tmp_path / "cut.log.gz"
    cut.write_bytes(data[: len(data) - 40])
    answer = json.loads(run("--log", str(cut), "--output", "json").stdout)
    assert any("ends early" in item["reason"] for item in answer["not_measured"])
    broken = tmp_path / "broken.log.gz"
    broken.write_bytes(data[:200] + b"\xff" * 400)
    assert run("--log", str(broken)).returncode in (2, 3)


def test_several_logs_are_one_server(tmp_path: Path) -> None:
    api, engine = tmp_path / "api.log", tmp_path / "engine.log"
    api.write_text(
        "(APIServer pid=1) INFO 05-12 16:40:00 [x.py:1] non-default args: {'max_num_seqs': 64}\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        "(APIServer pid=1) ERROR 05-12 16:48:54 [async_llm.py:699] AsyncLLM output_handler failed.\n"
    )
    engine.write_text(
        "(EngineCore pid=845) ERROR 05-12 16:48:53 [core.py:1131] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB of which 21.75 MiB is free.\n"
    )
    for order in ((api, engine), (engine, api)):
        arguments = [part for path in order for part in ("--log", str(path))]
        answer = json.loads(run(*arguments, "--output", "json").stdout)
        assert answer["findings"][0]["class"] == "oom-serving"
        assert answer["findings"][0]["explains"] == ["engine-dead"]
        assert {item["where"] for item in answer["findings"][0]["evidence"]} == {f"{engine}:1", f"{api}:3"}


def test_a_restart_that_holds_is_healthy_and_says_what_was_before() -> None:
    banner = b"INFO 07-30 16:41:16 [api_server.py:1395] vLLM API server version 0.11.0\n"
    log = (
        banner + b"OSError: [Errno 98] Address already in use\n" + banner + b"INFO:     Application startup complete.\n"
    )
    done = run("--log", "-", "--output", "json", stdin=log)
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["verdict"] == "healthy"
    assert answer["findings"][0]["class"] == "port-in-use" and answer["findings"][0]["severity"] == "info"
    assert "earlier start" in answer["findings"][0]["summary"]


def test_importing_it_is_light() -> None:
    code = (
        "import agent.diagnose, sys; "
        "print([m for m in ('aiohttp', 'psutil', 'slack_sdk', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50, check=True)
    assert done.stdout.strip() == b"[]"
