"""How many of the public incidents the catalogue answers right: ``python -m tests.diagnosis.score``.

Only the case's log is given; metrics-only cases are left out. Full: the first finding is the class or one
accepted beside it. Partial: an accepted class is among the first two findings and none of them is certain.
None: nothing above info.
"""

from __future__ import annotations

import sys

from agent.model import Confidence, Finding, Severity
from tests.diagnosis.logs import incidents, session

# Taxonomy: answers that count beside the class itself, because the log alone may not separate the two.
ACCEPTED: dict[str, frozenset[str]] = {
    "oom-load": frozenset({"gpu-memory-occupied"}),
    "oom-warmup": frozenset({"oom-load"}),
    "oom-cudagraph": frozenset({"oom-warmup"}),
    "kv-cache-none": frozenset({"kv-cache-too-small"}),
    "kv-cache-too-small": frozenset({"kv-cache-none"}),
    "gpu-memory-occupied": frozenset({"zombie-gpu-process"}),
    "zombie-gpu-process": frozenset({"gpu-memory-occupied"}),
    "host-oom-kill": frozenset({"engine-dead"}),
    "rocm": frozenset({"oom-load", "oom-warmup", "oom-cudagraph", "oom-serving"}),
    "nccl-timeout": frozenset({"engine-hang"}),
    "engine-hang": frozenset({"nccl-timeout"}),
    "illegal-memory-access": frozenset({"engine-dead"}),
    "spec-decode-crash": frozenset({"illegal-memory-access", "engine-dead"}),
    "async-scheduling": frozenset({"engine-dead"}),
    "kv-connector": frozenset({"engine-dead"}),
    "model-not-found": frozenset({"disk-download"}),
}


def findings_of(case: dict[str, object]) -> list[Finding]:
    read = session(str(case["log"]), source=str(case["id"]))
    return [cause.finding for cause in read.conclude()]


def accepted(case: dict[str, object]) -> frozenset[str]:
    tags = case["tags"]
    assert isinstance(tags, list)
    return ACCEPTED.get(tags[0], frozenset()) | {tags[0]}


def right(case: dict[str, object], findings: list[Finding]) -> bool:
    level, good = case["expect_level"], accepted(case)
    if level == "none":
        return all(finding.severity is Severity.INFO for finding in findings)
    if level == "full":
        return bool(findings) and findings[0].fault in good
    hedged = all(finding.confidence is not Confidence.CERTAIN for finding in findings[:2])
    return hedged and any(finding.fault in good for finding in findings[:2])


def main() -> None:
    totals: dict[str, list[int]] = {"full": [0, 0], "partial": [0, 0], "none": [0, 0]}
    for case in incidents():
        if case["expect_level"] == "metrics-only":
            continue
        total = totals[str(case["expect_level"])]
        total[0] += right(case, findings_of(case))
        total[1] += 1
    sys.stdout.write(" ".join(f"{level} {good}/{count}" for level, (good, count) in totals.items()) + "\n")


if __name__ == "__main__":
    main()
