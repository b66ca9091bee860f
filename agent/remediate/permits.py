"""What may be done to one server at all, and in which mode: asked before every step of a pursuit.

In: plans, the incident, the situation. Out: the reason why nothing may be done, or the mode of a plan. It reads the
freeze, the breaker and the budget through the view and the guard and changes nothing but the book of proposals.
"""

from __future__ import annotations

from agent.model import ActionState, Incident, Mode, State
from agent.remediate.book import Book
from agent.remediate.guard import Guard
from agent.remediate.plan import Plan
from agent.remediate.ports import View
from agent.remediate.situation import Situation


class Permits:
    """``owned`` False = attached only: everything is proposed, nothing is done."""

    def __init__(self, server: str, view: View, guard: Guard, *, owned: bool) -> None:
        self._server = server
        self._view = view
        self._guard = guard
        self._owned = owned

    def blocked(self, incident: Incident, situation: Situation | None) -> str | None:
        """Why nothing may be done to this server at all; None = something may."""
        if not self._owned or (situation is not None and not situation.has_hands):
            return "attached only: no launcher owns this server, so nothing is done to it"
        if self._view.frozen():
            return "frozen: agent freeze is in force"
        if self._view.state() in (State.STOPPED, State.DRAINING):
            return "a person stopped the server"
        nodes = situation.multi_node() if situation is not None else None
        if nodes is not None:
            return f"one node of several ({nodes}): diagnosed, never repaired alone"
        if situation is not None and situation.debugged is not None:
            return f"{situation.debugged}: nothing is ended under it"
        if self._guard.policy.dry_run:
            return None
        return self._guard.refusal(self._server, incident)

    def mode(self, plan: Plan) -> Mode:
        """The plan's mode, lowered by the global dry run."""
        return Mode.DRY_RUN if self._guard.policy.dry_run and plan.mode is not Mode.OFF else plan.mode

    def asks(self, plans: tuple[Plan, ...]) -> list[Plan]:
        """The plans that a person may approve."""
        return [it for it in plans if self.mode(it) is Mode.APPROVE]

    def propose(self, book: Book, plans: tuple[Plan, ...]) -> None:
        """Write down what would be done."""
        for it in plans:
            if self.mode(it) is not Mode.OFF:
                book.add(it, self.mode(it), ActionState.PROPOSED)
