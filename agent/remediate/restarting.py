"""A plain restart: the same command, the overrides in force unchanged.

Offered where it may help: an engine that died or hangs, a worker that the kernel killed (once: the next kill
comes as surely), a fault of unknown kind. Not offered for a start that failed and would fail again unchanged.
"""

from __future__ import annotations

from agent.model import Action, ActionState, Cause, Retry, State
from agent.remediate import neighbour
from agent.remediate.guard import Policy, executed
from agent.remediate.plan import Plan
from agent.remediate.proving import proofs_of
from agent.remediate.situation import Situation

ACTION = "restart"
ONCE = frozenset({"host-oom-kill"})
IN_VAIN = frozenset({ActionState.FAILED, ActionState.ROLLED_BACK})
NEVER = frozenset({"port-in-use", "config-invalid", "model-not-found"})


def may_help(cause: Cause, situation: Situation) -> str | None:
    """Why a plain restart cannot help, or None."""
    fault = cause.finding.fault
    if fault in NEVER:
        return f"{fault} needs a person's change"
    if cause.retry is Retry.NEEDS_CHANGE and situation.start_failed:
        return "the start failed and fails again without a change"
    return None


def plans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """The next restart, within the steps of one incident; none after another remedy was tried in vain."""
    done = [action for action in situation.previous if executed(action)]
    vain = any(_tried_in_vain(action) for action in done)
    attempt = 1 + sum(1 for action in done if action.action == ACTION)
    most = 1 if cause.finding.fault in ONCE else policy.budget_steps
    if may_help(cause, situation) is not None or vain or attempt > most:
        return ()
    return (
        Plan(
            action=ACTION,
            change="restart with the same command" + (f", attempt {attempt}" if attempt > 1 else ""),
            mode=situation.mode(ACTION),
            delta=situation.overrides,
            why=(_reason(cause), *_unchanged_because(situation)),
            precondition="the server is dead or hangs, and nobody stopped it",
            check=_not_asked_away,
            bounds=(f"at most {most} in one incident", "budget and backoff per fault and server"),
            cost="one start of the server; requests in flight are lost already",
            undo="nothing to undo",
            proofs=proofs_of(cause.finding.fault, policy),
        ),
    )


def _tried_in_vain(action: Action) -> bool:
    """Another remedy that did not hold, or memory waited for that did not come. One that the launcher could not
    carry out (its disk is full, say) proved nothing."""
    if action.action == ACTION or action.state not in IN_VAIN:
        return False
    never_proved = bool(action.proof) and all(proof.passed is None for proof in action.proof)
    return action.action == neighbour.WAIT or not never_proved


def _unchanged_because(situation: Situation) -> tuple[str, ...]:
    """Why the change that would cure it is not made."""
    if not situation.has_hands:
        return ("attached only: the agent has no hands on the server, so its settings stay as they are",)
    if not situation.can_append_flags:
        return ("no flag can be appended to this command (a shell or a wrapper), so its settings stay as they are",)
    failed = [it for it in situation.previous if it.action != ACTION and it.state in IN_VAIN and it.outcome]
    return tuple(f"{it.action} could not be done: {it.outcome}" for it in failed)


def _not_asked_away(now: Situation) -> str | None:
    return "a person stopped the server" if now.state in (State.STOPPED, State.DRAINING) else None


def _reason(cause: Cause) -> str:
    fault = cause.finding.fault
    if fault == "host-oom-kill":
        return "the kernel killed a process for memory: one restart, no second, for it would be killed again"
    if cause.retry is Retry.NEEDS_CHANGE:
        return f"{fault} came while serving and no remedy may be applied: a restart serves until it comes again"
    return f"{fault}: nothing in it says that a restart would fail"
