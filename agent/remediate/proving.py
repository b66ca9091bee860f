"""Which proofs a plan must bring; :mod:`agent.remediate.verification` collects them.

In: the fault and the policy's deadlines. Out: typed proofs. A repair is proven when the server serves,
answers a request, its token counter moved, and the fault's own line stayed away for the holding time.
"""

from __future__ import annotations

from agent.model import Proof
from agent.remediate.guard import Policy

SERVING = "serving"
REQUEST_ANSWERED = "request-answered"
METRIC_ADVANCED = "metric-advanced"
LOG_LINE_ABSENT = "log-line-absent"

TOKENS = "vllm:generation_tokens_total"


def proofs_of(fault: str, policy: Policy) -> tuple[Proof, ...]:
    """All four, in the order in which they can be had."""
    return (
        Proof(kind=SERVING, within_seconds=policy.serving_seconds),
        Proof(kind=REQUEST_ANSWERED, within_seconds=policy.request_seconds),
        Proof(kind=METRIC_ADVANCED, subject=TOKENS, within_seconds=policy.request_seconds),
        Proof(kind=LOG_LINE_ABSENT, subject=fault, within_seconds=policy.hold_seconds),
    )
