"""The ends of an incident: resolved, or handed over to a person, with an open breaker where the server is down.

In: the book of the incident and why it ends. Out: the closed incident with its note; the guard hears of repairs that
did not hold. One rule decides whether a dead server may be started by anybody: it is kept down exactly while the
breaker is open. The breaker is in the journal, so the rule survives the agent, and one command of a person, `agent
breaker reset`, ends every such case.
"""

from __future__ import annotations

from agent.model import ActionState, Cause, Incident, IncidentState
from agent.remediate import memoir, restarting
from agent.remediate.advice import advise
from agent.remediate.book import Book
from agent.remediate.execution import Result, forget_before
from agent.remediate.guard import NOT_HELD, Guard
from agent.remediate.handover import Standing, handover
from agent.remediate.ports import Ledger, View
from agent.remediate.situation import Situation

UNAPPROVED = frozenset({ActionState.DENIED, ActionState.EXPIRED})


class Endings:
    """Closes the incidents of one server. ``owned``: a launcher takes the agent's orders."""

    def __init__(self, server: str, view: View, ledger: Ledger, guard: Guard, *, owned: bool) -> None:
        self._server = server
        self._view = view
        self._ledger = ledger
        self._guard = guard
        self._owned = owned

    @property
    def acts(self) -> bool:
        """Whether anything is done to this server at all."""
        return self._owned and not self._guard.policy.dry_run

    def resolved(self, book: Book, result: Result, more: str = "") -> Incident:
        """Proven by ``result``."""
        outcome = f"{result.reason}{more}"
        lasting = memoir.permanent(self._ledger, book.incident, result.action)
        if lasting is not None:
            outcome = f"{outcome}; {lasting}"
            book.update(result.action, result.action.state, outcome=outcome)
        return self.close(book, IncidentState.RESOLVED, f"{result.action.change}: {outcome}")

    def nothing_left(self, book: Book, cause: Cause, situation: Situation, reason: str | None = None) -> Incident:
        """No safe remedy is left. A server that is down then stays down with an open breaker: whatever would start
        it now has failed, was not approved, or is known to fail."""
        why = reason or self._why(book)
        tried = any(it.state in NOT_HELD | UNAPPROVED for it in book.incident.actions)
        useless = restarting.may_help(cause, situation) is not None
        if self.acts and self._view.ended() and (tried or useless):
            self._guard.open_breaker(self._server, f"{book.incident.fault}: {why}")
        return self.give_up(book, cause, situation, why)

    def give_up(self, book: Book, cause: Cause, situation: Situation, reason: str) -> Incident:
        """Hand over to a person, with what to do."""
        self._guard.gave_up(self._server, book.incident, reason)
        standing = Standing(
            down=self._view.ended(),
            state=self._view.state(),
            frozen=self._view.frozen(),
            owned=self._owned and situation.has_hands,
            breaker=self._guard.breaker_open(self._server) is not None,
            dry_run=self._guard.policy.dry_run,
        )
        note = handover(book.incident, reason, standing, advise(cause, situation))
        return self.close(book, IncidentState.UNRESOLVED, note)

    def close(self, book: Book, state: IncidentState, note: str) -> Incident:
        """Set the final state; what was remembered of the cause is not needed any more."""
        memoir.forget_cause(self._ledger, book.incident)
        for action in book.incident.actions:
            forget_before(self._ledger, action)
        return book.move(state, note)

    def _why(self, book: Book) -> str:
        states = {it.state for it in book.incident.actions}
        if self._guard.policy.dry_run:
            return "dry run: proposed, not done"
        if states & NOT_HELD:
            return "no remedy held and none is left"
        if states & UNAPPROVED:
            return "the remedy was not approved"
        return "nothing safe is left to try"
