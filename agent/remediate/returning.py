"""What a restarted agent must know before it goes on with an incident of its previous life.

In: the view of the server, the ledger, an action that was cut off. Out: answers; the only thing written is a cause
that was not named yet. Going on itself is :meth:`agent.remediate.remediator.Remediator.resume`.
"""

from __future__ import annotations

from agent.model import Action, ActionState, Cause, Clock, Mode, State
from agent.remediate import memoir
from agent.remediate.approvals import expired
from agent.remediate.book import Book
from agent.remediate.execution import RUNS
from agent.remediate.failures import unnamed
from agent.remediate.ports import Ledger, View

FIRST_SIGHT_SECONDS = 30.0


async def first_sight(view: View, clock: Clock) -> None:
    """Right after the agent's start nothing is known of the server yet: wait for it, at most FIRST_SIGHT_SECONDS."""
    deadline = clock.monotonic() + FIRST_SIGHT_SECONDS
    while view.state() is State.UNKNOWN and not view.ended():
        left = deadline - clock.monotonic()
        if left <= 0:
            return
        await view.wait_change(min(1.0, left))


def back(view: View) -> bool:
    """Whether a start of the server runs."""
    return not view.ended() and view.state() in RUNS


def too_late(action: Action, view: View, clock: Clock) -> tuple[ActionState, str] | None:
    """What was decided long ago is not done to a server that has come back since: how the action ends, and why."""
    if action.expires_at is not None and expired(action, clock):
        return ActionState.EXPIRED, "approved, but the agent was away until the approval expired"
    if action.mode is Mode.AUTO and back(view):
        return ActionState.INTERRUPTED, "the server was started again before this was done"
    return None


async def newest_cause(view: View, ledger: Ledger, book: Book, cause: Cause) -> Cause:
    """The cause to pursue: what the newest death says, where there is one. An incident that was cut off before its
    cause was named gets it now."""
    if not view.ended():
        return cause
    fresh = await view.fresh_cause()
    if memoir.remembered(ledger, book.incident):
        return fresh or cause
    fresh = fresh or unnamed()
    memoir.remember_cause(ledger, book.name(fresh), fresh)
    return fresh
