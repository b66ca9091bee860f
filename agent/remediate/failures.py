"""What a repair that did not hold means, and what is done about its change.

The same fault again (or another fault of memory): the next step; a stepping change is kept, any other rolled
back. Another fault before the server served: our change did it, so it is rolled back and the next plan is
tried. Another fault while serving: the change stands unproven and stays, and the new fault is repaired in the
same incident.

A proof often fails before the process is gone: vLLM writes its fatal line first and exits seconds later
(EngineCore killed: 0.9 s; a scheduler assertion: 3.1 s). So the server is given time to end before anything is
decided. One that goes on answering all the same is left alone and handed to a person: a restart would lose
requests for a fault that it survives.
"""

from __future__ import annotations

from agent.model import ActionState, Cause, Clock, Confidence, Finding, Retry, Severity, State
from agent.remediate import proving
from agent.remediate.book import Book
from agent.remediate.execution import Executor, Result
from agent.remediate.hold import Holder
from agent.remediate.memory_numbers import OOM_FAULTS
from agent.remediate.planning import STEPPING
from agent.remediate.ports import View
from agent.remediate.verification import SERVES, Outcome

MEMORY_FAULTS = OOM_FAULTS | {"gpu-memory-occupied"}
END_SECONDS = 10.0


async def after_failure(
    executor: Executor, view: View, holder: Holder, clock: Clock, book: Book, cause: Cause, result: Result
) -> Cause | str:
    """The cause to go on with, or why this is the end."""
    await holder.renew()
    if result.outcome is Outcome.INTERRUPTED:
        return result.reason
    if result.verification is None:
        refused = result.action.state is ActionState.REFUSED
        if not refused and result.action.action not in STEPPING:
            await executor.roll_back(book, result.action, result.reason)  # set, perhaps, and then not started
        return result.reason if refused and not result.reason.startswith("precondition gone") else cause
    if not await ends(view, clock):
        return await _still_there(executor, view, book, cause, result)
    await holder.renew()
    fresh = await view.fresh_cause() or unnamed()
    if same_family(fresh, cause):
        if result.action.action not in STEPPING:
            await executor.roll_back(book, result.action, f"{result.reason}: {fresh.finding.fault} came again")
        return fresh
    if not result.served:
        rolled = await executor.roll_back(
            book, result.action, f"the start failed with {fresh.finding.fault}: {result.reason}"
        )
        return cause if rolled.state is ActionState.ROLLED_BACK else fresh
    kept = f"{fresh.finding.fault} came before the proof was complete; the change stays in force"
    book.update(result.action, ActionState.INTERRUPTED, outcome=kept)
    return fresh


async def ends(view: View, clock: Clock) -> bool:
    """Whether the server is gone, now or within ten seconds."""
    deadline = clock.monotonic() + END_SECONDS
    while not view.ended():
        left = deadline - clock.monotonic()
        if left <= 0 or view.state() in (State.STOPPED, State.DRAINING):
            return False
        await view.wait_change(left)
    return True


async def _still_there(executor: Executor, view: View, book: Book, cause: Cause, result: Result) -> Cause | str:
    """The proof failed and the process lives: it never served, it does not answer, or it survived the line."""
    if view.state() in (State.STOPPED, State.DRAINING):
        return "a person stopped the server"
    if _line_came(result) and view.state() in SERVES and (await view.request_answered())[0] is not False:
        return f"{result.reason}, but the server goes on answering, so it is not restarted for it"
    if result.action.action not in STEPPING:
        await executor.roll_back(book, result.action, result.reason)
    return cause


def _line_came(result: Result) -> bool:
    return any(it.kind == proving.LOG_LINE_ABSENT and it.passed is False for it in result.action.proof)


def same_family(one: Cause, two: Cause) -> bool:
    """The same fault, or both faults of the card's memory."""
    faults = {one.finding.fault, two.finding.fault}
    return len(faults) == 1 or faults <= MEMORY_FAULTS


def unnamed() -> Cause:
    """A death whose cause the log does not tell."""
    return Cause(
        finding=Finding(
            fault="engine-dead",
            confidence=Confidence.POSSIBLE,
            severity=Severity.CRITICAL,
            summary="the server died and its log names no cause",
        ),
        retry=Retry.MAY,
    )
