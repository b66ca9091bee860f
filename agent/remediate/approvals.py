"""Pending decisions of people.

In: :meth:`decide` from the API or the command line, at any moment. Out: :meth:`wait` wakes the remediator.
The state of record is the action in the journal; here is only the waking, so a restart of the agent loses
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent.errors import ConflictError
from agent.model import Action, ActionState, Clock, parse_rfc3339
from agent.remediate.book import Book
from agent.remediate.hold import RENEW_SECONDS


class Approvals:
    """The actions of one server that wait for a person."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, tuple[Book, asyncio.Event]] = {}

    def decide(self, action_id: str, actor: str, *, allow: bool) -> Action:
        """Approve or deny. Raises ConflictError when the action does not wait (decided, expired)."""
        entry = self._pending.get(action_id)
        action = entry[0].action(action_id) if entry is not None else None
        if entry is None or action is None or action.state is not ActionState.AWAITING_APPROVAL:
            raise ConflictError(
                f"action {action_id} does not wait for approval",
                remedy="see `agent incidents` for what waits; an expired proposal is not done any more",
            )
        book, event = entry
        if expired(action, self._clock):
            self._expire(book, action)
            event.set()
            raise ConflictError(f"action {action_id} expired at {action.expires_at}", remedy="see `agent incidents`")
        state = ActionState.APPROVED if allow else ActionState.DENIED
        decided = book.update(action, state, actor=actor, outcome=None if allow else f"denied by {actor}")
        event.set()
        return decided

    async def wait(self, book: Book, action: Action, renew: Callable[[], Awaitable[None]]) -> Action:
        """Until decided or expired; ``renew`` is awaited every 20 s (it keeps a dead server on hold)."""
        event = asyncio.Event()
        self._pending[action.id] = (book, event)
        try:
            while True:
                current = book.action(action.id) or action
                if current.state is not ActionState.AWAITING_APPROVAL:
                    return current
                if expired(current, self._clock):
                    return self._expire(book, current)
                await renew()
                await self._sleep(event)
        finally:
            self._pending.pop(action.id, None)

    async def _sleep(self, event: asyncio.Event) -> None:
        """Until the event or the next renewal, whichever is first."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(RENEW_SECONDS))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for it in waits:
                it.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    @staticmethod
    def _expire(book: Book, action: Action) -> Action:
        return book.update(action, ActionState.EXPIRED, outcome=f"nobody decided until {action.expires_at}")


def expired(action: Action, clock: Clock) -> bool:
    """True when the time to decide is over."""
    return action.expires_at is not None and clock.now() >= parse_rfc3339(action.expires_at)
