"""Logs adapted from public reports: the classes of the catalogue, the benign ones, and no wrong certainty
elsewhere."""

from __future__ import annotations

import pytest

from agent.model import Confidence, Severity
from tests.diagnosis.logs import catalogue, incidents
from tests.diagnosis.score import accepted, findings_of, right

CASES = [case for case in incidents() if case["expect_level"] != "metrics-only"]
KNOWN = {entry.fault for entry in catalogue().faults}
# The decisive line is outside these excerpts and nothing in them leans towards the cause: no answer is the
# honest one.
SILENT = {"case-033", "case-071"}


def _in_scope(case: dict[str, object]) -> bool:
    tags = case["tags"]
    assert isinstance(tags, list)
    return tags[0] in KNOWN


@pytest.mark.parametrize("case", [c for c in CASES if _in_scope(c)], ids=lambda c: str(c["slug"]))
def test_a_class_of_the_catalogue_is_named(case: dict[str, object]) -> None:
    findings = findings_of(case)
    if case["id"] in SILENT:
        assert all(finding.severity is Severity.INFO for finding in findings)
    else:
        assert right(case, findings), [(f.fault, f.confidence.value) for f in findings]


@pytest.mark.parametrize("case", [c for c in CASES if c["expect_level"] == "none"], ids=lambda c: str(c["slug"]))
def test_a_benign_log_raises_nothing(case: dict[str, object]) -> None:
    assert right(case, findings_of(case))


@pytest.mark.parametrize("case", [c for c in CASES if not _in_scope(c)], ids=lambda c: str(c["slug"]))
def test_a_class_outside_the_catalogue_is_never_answered_with_wrong_certainty(
    case: dict[str, object],
) -> None:
    for finding in findings_of(case):
        if finding.severity is not Severity.INFO and finding.fault not in accepted(case):
            assert finding.confidence is not Confidence.CERTAIN
            assert finding.fault in ("engine-dead", "engine-hang")
