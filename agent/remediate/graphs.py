"""CUDA graphs that do not fit: run without them, when a person agrees.

Eager execution needs no graph memory but is slower and may change outputs in the last bits, so it is never
automatic unless the operator says so. It comes after the steps that leave room for the graphs.
"""

from __future__ import annotations

from agent.model import Cause
from agent.remediate.guard import Policy
from agent.remediate.overrides import in_force, merged
from agent.remediate.plan import Plan
from agent.remediate.proving import proofs_of
from agent.remediate.situation import Situation

ACTION = "enforce-eager"
FLAG = "--enforce-eager"


def plans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """One plan, unless the server is eager already."""
    eager = situation.settings.enforce_eager
    already = in_force(situation.overrides, situation.argv, FLAG) is not None
    if already or not situation.can_append_flags or (eager is not None and str(eager.value).lower() == "true"):
        return ()
    return (
        Plan(
            action=ACTION,
            change="enforce-eager (no CUDA graphs)",
            mode=situation.mode(ACTION),
            delta=merged(situation.overrides, {FLAG: ""}),
            why=("memory ran out while CUDA graphs were captured: without graphs nothing is captured",),
            precondition="the server captures graphs",
            cost="one restart; slower decoding",
            undo="agent overrides clear, then a restart",
            proofs=proofs_of(cause.finding.fault, policy),
        ),
    )
