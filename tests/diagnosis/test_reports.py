"""Excerpts as people post them: cut, wrapped by a terminal, quoted, behind other programs' prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest
import yaml

from agent.model import Confidence, Severity
from tests.diagnosis.logs import catalogue, causes


class Report(TypedDict):
    ref: str
    accept: list[str]
    other: bool
    log: str


CASES: list[Report] = yaml.safe_load((Path(__file__).parent / "reports.yaml").read_text())
HELD = [case for case in CASES if not case.get("other")]
OTHERS = [case for case in CASES if case.get("other")]


def _name(case: Report) -> str:
    return case["ref"].replace("/", "-")


@pytest.mark.parametrize("case", HELD, ids=_name)
def test_the_first_loud_finding_is_the_reported_fault(case: Report) -> None:
    loud = [cause.finding for cause in causes(case["log"]) if cause.finding.severity is not Severity.INFO]
    first = loud[0].fault if loud else "none"
    assert first in case["accept"], [(finding.fault, finding.confidence.value) for finding in loud]


@pytest.mark.parametrize("case", OTHERS, ids=_name)
def test_a_fault_that_nobody_described_is_at_most_guessed(case: Report) -> None:
    known = {entry.fault for entry in catalogue().faults}
    for cause in causes(case["log"]):
        finding = cause.finding
        if finding.severity is Severity.INFO:
            continue
        assert finding.confidence is not Confidence.CERTAIN
        assert finding.fault in ("engine-dead", "engine-hang") or finding.fault in known.intersection(case["accept"])


def test_a_death_with_a_named_exception_quotes_it_and_stays_a_guess() -> None:
    log = (
        "INFO:     Application startup complete.\n"
        "(EngineCore pid=7) ERROR 02-03 04:05:06 [core.py:1197] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=7) ERROR 02-03 04:05:06 [core.py:1197] IndexError: index 9 is out of bounds\n"
        "(APIServer pid=1) ERROR 02-03 04:05:06 [async_llm.py:485] AsyncLLM output_handler failed.\n"
    )
    finding = causes(log)[0].finding
    assert finding.fault == "engine-dead"
    assert finding.confidence is Confidence.POSSIBLE
    assert "IndexError: index 9 is out of bounds" in finding.summary


def test_failed_requests_before_a_death_leave_it_likely_and_the_engines_exception_in_sight() -> None:
    request = "(APIServer pid=1) ERROR 02-03 04:05:06 [serving.py:9] ValueError: too long\n"
    death = (
        "(EngineCore pid=7) ERROR 02-03 04:05:06 [core.py:1197] EngineCore encountered a fatal error.\n"
        "(APIServer pid=1) ERROR 02-03 04:05:06 [async_llm.py:485] AsyncLLM output_handler failed.\n"
    )
    many = "".join(request.replace("long", f"long {number}") for number in range(100))
    assert causes("INFO:     Application startup complete.\n" + many + death)[0].finding.confidence is Confidence.LIKELY
    named = "(EngineCore pid=7) ERROR 02-03 04:05:06 [core.py:1197] KeyError: 'req-1'\n"
    finding = causes("INFO:     Application startup complete.\n" + many + death + named)[0].finding
    assert "KeyError: 'req-1'" in finding.summary


def test_a_waiting_worker_in_the_traceback_of_a_stop_is_no_hang() -> None:
    log = (
        "INFO:     Application startup complete.\n"
        '(Worker_TP0 pid=8)   File "/srv/env/vllm/shm_broadcast.py", line 779, in acquire_read\n'
        "(Worker_TP0 pid=8) KeyboardInterrupt\n"
        "ERROR 02-03 04:05:06 [core_client.py:459] Engine core proc EngineCore_0 died unexpectedly.\n"
    )
    assert [cause for cause in causes(log) if cause.finding.severity is not Severity.INFO] == []


def test_a_picture_that_could_not_be_fetched_in_time_is_no_hang() -> None:
    log = (
        "INFO:     Application startup complete.\n"
        "(APIServer pid=1) ERROR 02-03 04:05:06 [serving_chat.py:99] Error in preprocessing prompt inputs\n"
        '(APIServer pid=1) ERROR 02-03 04:05:06 [serving_chat.py:99]   File "/srv/env/aiohttp/helpers.py", line 1\n'
        "(APIServer pid=1) ERROR 02-03 04:05:06 [serving_chat.py:99] TimeoutError\n"
    )
    assert causes(log) == ()
