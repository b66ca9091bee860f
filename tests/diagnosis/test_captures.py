"""Logs of real servers (vLLM 0.25.1 on an H200, 0.32.0 on CPU): the right first class, and nothing for the
healthy."""

from __future__ import annotations

import pytest

from agent.model import AssemblerFacts, Confidence, Mechanism, MemoryFacts, Severity
from tests.diagnosis.logs import capture, causes, expected, first, session


@pytest.mark.parametrize("name", sorted(expected()))
def test_first_class_is_the_expected_one(name: str) -> None:
    right = expected()[name]
    findings = [cause.finding for cause in causes(capture(name))]
    loud = [finding.fault for finding in findings if finding.severity is not Severity.INFO]
    if right == ["none"]:
        assert loud == []
    else:
        assert findings[0].fault in right
        assert set(loud) <= set(right)


def test_a_serving_oom_names_the_neighbour_with_its_numbers() -> None:
    cause = causes(capture("h200_oom_serving.log.gz"))[0]
    assert cause.finding.mechanism is Mechanism.NEIGHBOUR
    assert cause.finding.confidence is Confidence.CERTAIN
    assert "3095" in cause.finding.summary and "99.36 GiB" in cause.finding.summary
    assert isinstance(cause.facts, MemoryFacts)
    assert cause.facts.neighbours[0].pid == 3095
    assert cause.facts.requested_bytes == 220 << 20
    assert [remedy.action for remedy in cause.finding.remedies] == ["oom-fit-neighbour", "wait-for-memory"]
    assert cause.finding.remedies[0].change == "--gpu-memory-utilization 0.27"


def test_the_engine_dead_wall_is_a_symptom_of_the_oom() -> None:
    assert "engine-dead" in first(capture("h200_oom_serving.log.gz")).explains


def test_five_thousand_equal_errors_leave_bounded_evidence_with_a_count() -> None:
    finding = first(capture("cpu032_fail_kill9_enginecore.log.gz"))
    assert len(finding.evidence) <= 7
    assert any("times)" in item.text for item in finding.evidence)
    assert all(len(item.text) <= 500 for item in finding.evidence)


def test_ptxas_names_architecture_and_assembler() -> None:
    facts = causes(capture("h200_ptxas_unknown_arch.log.gz"))[0].facts
    assert facts == AssemblerFacts(arch="sm_90a", path="/usr/local/cuda-12.0/bin/ptxas")


def test_the_length_that_fits_is_the_proposed_flag() -> None:
    finding = first(capture("h200_kv_too_small.log"))
    assert finding.remedies[0].change == "--max-model-len 50688"


def test_a_killed_worker_stays_open_between_two_answers() -> None:
    findings = [cause.finding for cause in causes(capture("cpu032_startfail_host_oom_cgroup.log.gz"))]
    assert {finding.fault for finding in findings} == {"engine-dead", "host-oom-kill"}
    assert all(finding.confidence is not Confidence.CERTAIN for finding in findings)


def test_a_normal_sigterm_is_a_shutdown_not_a_fault() -> None:
    read = session(capture("h200_base.log"))
    assert read.started and read.shutdown_requested
    assert read.conclude() == ()


def test_evidence_says_file_and_line_as_grep_counts_them() -> None:
    data = capture("cpu032_fail_oom_in_serving.log.gz")
    lines = data.split(b"\n")
    for item in first(data).evidence:
        number = int(item.where.rpartition(":")[2])
        assert item.text[:40].encode() in lines[number - 1]
