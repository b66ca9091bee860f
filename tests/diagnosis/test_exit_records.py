"""What the exit record adds to the log: silent deaths, the kernel's counter, usage errors."""

from __future__ import annotations

import msgspec
import pytest

from agent.model import Confidence, Context, Exit, ProcessFacts, Severity
from tests.diagnosis.logs import capture, causes

READY = "INFO:     Application startup complete.\n"
DIED = "(EngineCore pid=4) ERROR 11-30 16:24:40 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.\n"  # noqa: E501
RECORD = Exit(
    seq=3,
    pid=10,
    command_hash="x",
    started_at="2026-01-01T00:00:00.000Z",
    ready_at=None,
    exited_at="2026-01-01T00:01:00.000Z",
    code=0,
    signal=None,
    asked=False,
    reason="exited",
    oom_kill_delta=0,
    log_offset=0,
)


def context(**changes: object) -> Context:
    return Context(exit=msgspec.structs.replace(RECORD, **changes))


def test_an_unasked_exit_zero_without_evidence_is_a_death() -> None:
    finding = causes(READY, context())[0].finding
    assert finding.fault == "engine-dead" and finding.severity is Severity.CRITICAL
    assert finding.evidence[0].source == "exit record"
    assert [remedy.action for remedy in finding.remedies] == ["restart"]


def test_an_asked_exit_is_none() -> None:
    assert causes(READY, context(asked=True, reason="stop")) == ()


def test_a_shutdown_seen_in_the_log_is_none() -> None:
    log = READY + "INFO 11-30 16:15:44 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
    assert causes(log, context()) == ()


def test_exit_two_before_ready_is_a_refused_configuration() -> None:
    cause = causes("usage: vllm\n", context(code=2))[0]
    assert cause.finding.fault == "config-invalid" and cause.finding.confidence is Confidence.LIKELY


def test_the_kernels_counter_makes_a_host_oom_certain() -> None:
    cause = causes(DIED, context(code=1, oom_kill_delta=1))[0]
    assert cause.finding.fault == "host-oom-kill" and cause.finding.confidence is Confidence.CERTAIN
    assert cause.facts == ProcessFacts(process="VllmWorker-0", exit_code=-9, signal=9)
    assert "engine-dead" in cause.finding.explains


def test_the_kernels_counter_at_zero_clears_the_host() -> None:
    assert [cause.finding.fault for cause in causes(DIED, context(code=1))] == ["engine-dead"]


def test_without_the_counter_both_stay_open() -> None:
    found = causes(DIED, context(code=1, oom_kill_delta=None))
    assert [cause.finding.fault for cause in found] == ["engine-dead", "host-oom-kill"]
    assert all(cause.finding.confidence is not Confidence.CERTAIN for cause in found)


@pytest.mark.parametrize("name", ["cpu032_fail_kill9_enginecore.log.gz", "cpu032_startfail_host_oom_cgroup.log.gz"])
def test_a_counted_kill_explains_a_dead_engine(name: str) -> None:
    assert causes(capture(name), context(oom_kill_delta=1))[0].finding.fault == "host-oom-kill"


def test_a_gpu_oom_stays_a_gpu_oom_whatever_the_exit_code() -> None:
    finding = causes(capture("cpu032_fail_oom_in_serving.log.gz"), context())[0].finding
    assert finding.fault == "oom-serving"
    assert finding.evidence[-1].source == "exit record"
