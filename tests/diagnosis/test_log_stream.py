"""A log while it is written: cut anywhere, full of rubbish, flooding, restarting. Never raises or grows."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.diagnose import LogSession, Signal
from agent.model import Severity
from tests.diagnosis.logs import capture, catalogue, loud, session

CAPTURE = capture("cpu032_fail_oom_in_serving.log.gz")
OOM_LINE = (
    b"(Worker pid=9) ERROR 05-12 16:48:53 [core.py:1131] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
)
READY_LINE = b"(APIServer pid=1) INFO:     Application startup complete.\n"


def new() -> LogSession:
    return LogSession(catalogue(), source="log")


def feed(data: bytes, cuts: list[int]) -> tuple[list[Signal], LogSession]:
    read, signals, last = new(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        signals += read.feed(data[last:cut])
        last = cut
    signals += read.finish()
    return signals, read


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, len(CAPTURE)), max_size=40))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    whole, read_whole = feed(CAPTURE, [])
    parts, read_parts = feed(CAPTURE, cuts)
    assert parts == whole
    assert read_parts.conclude() == read_whole.conclude()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=4000))
def test_any_bytes_are_read_and_the_fault_after_them_is_still_seen(rubbish: bytes) -> None:
    read = new()
    read.feed(rubbish)
    assert read.lines == rubbish.count(b"\n")
    read.feed(b"\n" + READY_LINE + OOM_LINE + b"\n")
    read.finish()
    assert "oom-serving" in [cause.finding.fault for cause in read.conclude()]


def test_half_a_line_counts_only_when_it_is_complete_or_the_log_ends() -> None:
    read = new()
    assert read.feed(READY_LINE + OOM_LINE) == ()
    assert [signal.fault for signal in read.finish()] == ["oom-serving"]


def test_a_megabyte_line_is_bounded_and_what_follows_is_read() -> None:
    read = new()
    for _ in range(40):
        read.feed(b"x" * (1 << 18))
    read.feed(b"\n" + READY_LINE + OOM_LINE + b"\n")
    assert read.conclude()[0].finding.fault == "oom-serving"
    assert read.conclude()[0].finding.evidence[0].where == "log:3"


def test_an_oom_is_fatal_as_soon_as_its_line_is_complete() -> None:
    signals, _ = feed(CAPTURE, [])
    fatal = next(signal for signal in signals if signal.fatal)
    assert (fatal.fault, fatal.role, fatal.severity) == ("oom-serving", "initiating", Severity.CRITICAL)


def test_an_engine_killed_from_outside_is_fatal_from_its_first_line() -> None:
    signals, _ = feed(capture("cpu032_fail_kill9_enginecore.log.gz"), [])
    assert signals[0].fault == "engine-dead" and signals[0].fatal and signals[0].where == "log:140"
    assert len(signals) < 20


@pytest.mark.parametrize("name", ["h200_base.log", "cpu032_serve_normal.log.gz"])
def test_a_healthy_log_with_a_normal_stop_gives_no_signal(name: str) -> None:
    signals, read = feed(capture(name), [])
    assert signals == [] and read.shutdown_requested


def test_a_failed_administrative_call_is_not_fatal() -> None:
    signals, _ = feed(capture("cpu032_serve_kvpressure_devmode.log.gz"), [])
    assert not any(signal.fatal for signal in signals)


def test_a_flood_is_folded_and_its_first_cause_kept() -> None:
    wall = capture("cpu032_fail_kill9_enginecore.log.gz")[60_000:]
    read = new()
    read.feed(READY_LINE + OOM_LINE + b" 2.00 GiB. GPU 0 has\n")
    began = time.process_time()
    for _ in range(20):
        read.feed(wall)
    spent = time.process_time() - began
    assert spent < len(wall) * 20 / 2e6  # far above 2 MB/s even on a busy machine
    cause = read.conclude()[0]
    assert cause.finding.fault == "oom-serving"
    assert len(cause.finding.evidence) <= 7
    assert len(read.start.anchors) <= 256


def test_a_flood_of_ever_new_errors_does_not_hide_a_later_cause() -> None:
    flood = b"".join(
        b"(APIServer pid=1) ERROR 05-12 16:48:53 [a.py:1] EngineDeadError request %d\n" % n for n in range(30_000)
    )
    assert loud(READY_LINE + flood + OOM_LINE + b"\n")[0] == "oom-serving"


def test_prompts_are_no_evidence() -> None:
    line = (
        b"(APIServer pid=1) INFO 12-16 23:35:20 [logger.py:42] Received request chatcmpl-1: prompt: 'why do I "
        b"see torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB, EngineDeadError', params: x\n"
    )
    assert loud(line) == []


def test_progress_is_told_until_the_server_serves() -> None:
    read = new()
    read.feed(b"(EngineCore pid=9) Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02]\n")
    assert read.progress == "loading weights 40 %"
    read.feed(b"(EngineCore pid=9) Capturing CUDA graphs (FULL):   0%|  | 0/51 [00:00<?]\rCapturing CUDA graphs (FULL):"
              b"  24%|  | 12/51 [00:00<00:01]\n")  # fmt: skip
    assert read.progress == "capturing graphs 12/51"
    read.feed(READY_LINE)
    assert read.progress is None and read.started


BANNER = b"(APIServer pid=%d) INFO 07-30 16:41:16 [api_server.py:1395] vLLM API server version 0.11.0\n"


def test_the_last_start_of_a_file_decides() -> None:
    read = session(BANNER % 1 + READY_LINE + OOM_LINE + b"\n" + BANNER % 2 + READY_LINE)
    assert read.conclude() == () and read.started
    assert len(read.earlier) == 1


def test_two_api_servers_are_one_start() -> None:
    read = session(BANNER % 1 + BANNER % 2 + READY_LINE)
    assert read.earlier == []


def test_an_error_before_a_completed_start_is_only_information() -> None:
    line = b"(Worker pid=4) ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'\n"
    assert loud(line) == ["triton-ptxas"]
    assert loud(line + READY_LINE) == []


def test_a_broadcast_wait_that_passed_is_no_hang() -> None:
    wait = (
        b"(EngineCore pid=7) INFO 01-01 10:01:00 [shm_broadcast.py:430] "
        b"No available shared memory broadcast block found in 60 seconds.\n"
    )
    tokens = b"(APIServer pid=1) INFO 01-01 10:01:30 [loggers.py:1] Engine 000: Avg prompt throughput: 10 t/s\n"
    assert loud(READY_LINE + wait) == ["engine-hang"]
    assert loud(READY_LINE + wait + tokens) == []
    assert loud(b"(Worker pid=7) INFO 01-01 10:00:00 [x.py:1] Starting to load model x...\n" + wait) == []


def test_an_oom_that_the_server_survived_is_a_warning() -> None:
    tokens = b"(APIServer pid=1) INFO 01-01 10:01:30 [loggers.py:1] Engine 000: Avg prompt throughput: 10 t/s\n"
    read = session(READY_LINE + OOM_LINE + b"\n" + tokens)
    assert read.conclude()[0].finding.severity is Severity.WARNING


def test_an_unfinished_escape_swallows_no_line() -> None:
    read = session(b"\x1b]0;title\n" + READY_LINE + OOM_LINE + b"\n")
    assert read.lines == 3 and read.conclude()[0].finding.evidence[0].where == "vllm.log:3"


ACCESS_LINE = b'(APIServer pid=1) INFO:     127.0.0.1:51234 - "POST /v1/completions HTTP/1.1" 200 OK\n'
THROUGHPUT_LINE = (
    b"(APIServer pid=1) INFO 05-12 16:48:50 [loggers.py:335] Engine 000: Avg prompt throughput: 81.1 tokens/s\n"
)
QUOTED_LINE = b"INFO 05-12 16:48:50 [logger.py:41] Received request 7: prompt: 'Avg prompt throughput: 9.0 tokens/s'\n"


@pytest.mark.parametrize("before", (0, 1, 39, 700, 1401))
@pytest.mark.parametrize("line", (OOM_LINE, b"bash: line 1:    12 Killed                  vllm serve m"))
def test_one_line_in_an_ordinary_day_is_found_where_it_stands(before: int, line: bytes) -> None:
    day = [THROUGHPUT_LINE if n % 30 == 7 else ACCESS_LINE for n in range(1500)]
    signals, read = feed(READY_LINE + b"".join((*day[:before], line + b"\n", *day[before:])), [])
    assert [signal.where for signal in signals] == [f"log:{before + 2}"]
    assert read.lines == 1502


def test_the_latest_throughput_is_known_with_its_line() -> None:
    _, read = feed(READY_LINE + ACCESS_LINE * 900 + THROUGHPUT_LINE + ACCESS_LINE * 5 + QUOTED_LINE * 3, [])
    assert read.start.throughput == (902, "05-12 16:48:50")
    assert read.lines == 910
