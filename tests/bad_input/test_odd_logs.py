"""Logs that no vLLM would write: what could not be read is said, and nothing is made up."""

from __future__ import annotations

import io

import pytest

from agent.diagnose import LogSession, LogSource, diagnose_logs, load_catalogue
from agent.model import Context, Diagnosis, Exit, Verdict

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def diagnosis(data: bytes) -> Diagnosis:
    return diagnose_logs([LogSource("a.log", io.BytesIO(data))], load_catalogue())


@pytest.mark.parametrize("before", [1 << 19, 1 << 21])
def test_a_line_too_long_to_read_is_named_as_not_measured(before: int) -> None:
    told = diagnosis(b"x" * before + OOM + b"y" * before + b"\n")
    assert told.verdict is Verdict.UNKNOWN
    assert any("long lines of a.log" in one.check for one in told.not_measured)


def test_a_long_line_hides_nothing_after_it() -> None:
    told = diagnosis(b"x" * (1 << 21) + b"\n" + OOM + b"\n")
    assert told.verdict is Verdict.CRITICAL and told.findings[0].fault.startswith("oom-")


def test_an_ordinary_log_has_no_long_lines() -> None:
    assert not any("long lines" in one.check for one in diagnosis(OOM + b"\n").not_measured)


def test_a_refusal_without_a_word_in_the_log_is_told_in_a_whole_sentence() -> None:
    record = Exit(
        seq=1,
        pid=1,
        command_hash="",
        started_at="2026-01-01T00:00:00Z",
        exited_at="2026-01-01T00:00:01Z",
        started_monotonic=0.0,
        exited_monotonic=1.0,
        ready_at=None,
        ready_monotonic=None,
        code=2,
        signal=None,
        oom_kill_delta=None,
        asked=False,
        reason="usage-error",
        log_offset=0,
    )
    cause = LogSession(load_catalogue(), source="a.log").conclude(Context(exit=record))[0]
    assert cause.finding.fault == "config-invalid"
    assert cause.finding.summary == "The configuration is refused; the log does not say more."
