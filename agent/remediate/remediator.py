"""Pursuing an incident: the loop from a cause to a proven repair, or to a note for a person.

In: an incident, its cause and a source of situations, from the watcher. Out: the incident, closed; on the way
every change goes through the :class:`agent.remediate.book.Book`. It decides what comes next; planning is pure
and lives in :mod:`agent.remediate.planning`, what a failure means in :mod:`agent.remediate.failures`, and the
server is touched by :class:`agent.remediate.execution.Executor` alone.

How it chooses: the first plan in order of preference that may be done without asking; a plain restart only
when no such plan is left; then what a person may approve. While a person is asked, a server that a plain
restart can bring back is restarted first, so that nobody's lunch keeps a service down.
"""

from __future__ import annotations

import msgspec

from agent.model import Action, ActionState, Cause, Clock, Incident, IncidentState, Mode, Retry
from agent.remediate import memoir, restarting
from agent.remediate.approvals import Approvals
from agent.remediate.book import Book
from agent.remediate.ending import Endings
from agent.remediate.execution import Executor, Result
from agent.remediate.failures import after_failure
from agent.remediate.guard import Guard, executed
from agent.remediate.hold import Holder
from agent.remediate.permits import Permits
from agent.remediate.plan import Plan
from agent.remediate.planning import plan as make_plans
from agent.remediate.ports import Hands, Ledger, Observer, SituationSource, View
from agent.remediate.proving import proofs_of
from agent.remediate.returning import back, first_sight, newest_cause, too_late
from agent.remediate.settling import settled
from agent.remediate.situation import Situation
from agent.remediate.verification import Outcome, Verifier

# A plan whose precondition is gone is made anew with new numbers; a card that never rests must not spin here.
MOST_REFUSALS = 6


class Remediator:
    """Pursues the incidents of one server, one at a time."""

    def __init__(
        self,
        *,
        server: str,
        hands: Hands | None,
        view: View,
        ledger: Ledger,
        guard: Guard,
        clock: Clock,
        on_change: Observer,
    ) -> None:
        """``hands`` None = attached only: everything is proposed, nothing is done."""
        self._server = server
        self._view = view
        self._ledger = ledger
        self._guard = guard
        self._clock = clock
        self._on_change = on_change
        self._approvals = Approvals(clock)
        self._holder = Holder(hands, view, clock)
        self._executor = (
            Executor(server, hands, view, ledger, guard, clock, self._holder) if hands is not None else None
        )
        self._permits = Permits(server, view, guard, owned=hands is not None)
        self._end = Endings(server, view, ledger, guard, owned=hands is not None)

    async def pursue(self, incident: Incident, cause: Cause, source: SituationSource) -> Incident:
        """Repair ``cause``; returns the incident resolved or unresolved. Never raises for a fault of the
        server.
        """
        async with self._guard.lock(self._server):
            memoir.remember_cause(self._ledger, incident, cause)
            book = self._book(incident)
            await self._back_off(book)
            return await self._let_go(await self._work(book, cause, source, None))

    async def resume(self, incident: Incident, source: SituationSource) -> Incident:
        """Go on with an incident that was open when the agent ended.

        Verification and approvals continue; an action that was cut off before it reached the launcher is
        marked interrupted and planned anew; nothing is executed twice.
        """
        async with self._guard.lock(self._server):
            book, cause = self._book(incident), memoir.recall_cause(self._ledger, incident)
            await first_sight(self._view, self._clock)
            pending = next((it for it in reversed(incident.actions) if not it.state.final), None)
            result = await self._resume_action(book, pending, cause, source) if pending is not None else None
            if result is None and back(self._view):
                return await self._already_back(book, cause, source)
            if result is None:
                cause = await newest_cause(self._view, self._ledger, book, cause)
            return await self._let_go(await self._work(book, cause, source, result))

    def approve(self, action_id: str, actor: str) -> Action:
        """A person allows a pending action. Raises AgentError when it is unknown, decided or expired."""
        return self._approvals.decide(action_id, actor, allow=True)

    def deny(self, action_id: str, actor: str) -> Action:
        """A person refuses a pending action. Raises as :meth:`approve`."""
        return self._approvals.decide(action_id, actor, allow=False)

    @property
    def stay_down(self) -> bool:
        """True while a dead server must not be started, because its breaker is open: the watcher renews
        ``hold`` while this is true and the server is dead. It survives the agent, since the breaker does."""
        return self._end.acts and self._guard.breaker_open(self._server) is not None

    # -- the loop ----------------------------------------------------------------------------------

    async def _work(self, book: Book, cause: Cause, source: SituationSource, result: Result | None) -> Incident:
        """Until closed. Every round ends the incident or adds an action, and actions are counted."""
        restored: Result | None = None
        while True:
            if result is not None and result.outcome is Outcome.VERIFIED:
                restored = result
                if not await self._something_to_ask(book, result, cause, source):
                    return self._end.resolved(book, result)
            elif result is not None and self._executor is not None:
                restored = None
                following = await after_failure(
                    self._executor, self._view, self._holder, self._clock, book, cause, result
                )
                if isinstance(following, str):
                    return self._end.give_up(book, cause, await self._situation(book, cause, source), following)
                cause = following
                memoir.remember_cause(self._ledger, book.incident, cause)
            situation = await self._situation(book, cause, source)
            plans = make_plans(cause, situation, self._guard.policy)
            reason = self._permits.blocked(book.incident, situation)
            if reason is not None:
                self._permits.propose(book, plans[:1])
                return self._end.give_up(book, cause, situation, reason)
            if _restless(book):
                return self._end.nothing_left(
                    book, cause, situation, "the situation changed before each remedy was begun"
                )
            self._permits.propose(book, tuple(it for it in plans if self._permits.mode(it) is Mode.DRY_RUN))
            result = await self._next(book, plans, cause, source, asking=restored is not None)
            if result is None and restored is not None:
                return self._end.resolved(book, restored, "; the change that would cure it was not approved")
            if result is None:
                return self._end.nothing_left(book, cause, situation)

    async def _let_go(self, incident: Incident) -> Incident:
        """A server that is left dead without an open breaker is the launcher's again, and at once."""
        if not self.stay_down:
            await self._holder.release()
        return incident

    async def _next(
        self, book: Book, plans: tuple[Plan, ...], cause: Cause, source: SituationSource, *, asking: bool
    ) -> Result | None:
        """Carry out the best plan that may be done; None = none left. ``asking``: it serves again."""
        autos = [it for it in plans if self._permits.mode(it) is Mode.AUTO and not asking]
        best = next((it for it in autos if it.action != restarting.ACTION), autos[0] if autos else None)
        if best is not None:
            await self._pace(book)
            return await self._do(book, best, book.add(best, Mode.AUTO, ActionState.APPROVED), cause, source)
        for asked in self._permits.asks(plans):
            expires = self._guard.policy.approval_expires_seconds
            action = book.add(asked, Mode.APPROVE, ActionState.AWAITING_APPROVAL, expires_after=expires)
            if (action := await self._await_decision(book, action, cause, source)).state is ActionState.APPROVED:
                return await self._do(book, asked, action, cause, source)
        return None

    async def _do(self, book: Book, plan: Plan, action: Action, cause: Cause, source: SituationSource) -> Result:
        if self._executor is None:
            return Result(action=book.update(action, ActionState.REFUSED, outcome="no launcher"), reason="no launcher")
        return await self._executor.carry_out(book, plan, action, cause, source)

    async def _pace(self, book: Book) -> None:
        """The restarts of one incident come slower and slower: at once, then after 1, 2, 4 … s by default."""
        done = sum(1 for it in book.incident.actions if executed(it))
        steps = self._guard.policy.backoff_seconds
        if done and steps:
            await self._holder.pause(steps[min(done, len(steps) - 1)], self._view.frozen)

    async def _back_off(self, book: Book) -> None:
        await self._holder.renew()
        delay = self._guard.backoff(self._server, book.incident.fault, book.incident.id)
        if delay > 0 and self._permits.blocked(book.incident, None) is None:
            await self._holder.pause(delay, self._view.frozen)

    # -- approvals ---------------------------------------------------------------------------------

    async def _something_to_ask(self, book: Book, result: Result, cause: Cause, source: SituationSource) -> bool:
        """After a plain restart that serves: whether a person could still approve the cure."""
        if result.action.action != restarting.ACTION or cause.retry is not Retry.NEEDS_CHANGE:
            return False
        situation = await self._situation(book, cause, source)
        return bool(self._permits.asks(make_plans(cause, situation, self._guard.policy)))

    async def _await_decision(self, book: Book, action: Action, cause: Cause, source: SituationSource) -> Action:
        book.move(IncidentState.AWAITING_APPROVAL)

        async def keep() -> None:
            await self._keep_serving(book, cause, source)

        return await self._approvals.wait(book, action, keep)

    async def _keep_serving(self, book: Book, cause: Cause, source: SituationSource) -> None:
        """While a person is asked: hold a dead server, and restart it where a restart may help."""
        await self._holder.renew()
        if not self._view.ended() or self._executor is None:
            return
        situation = await self._situation(book, cause, source)
        for it in restarting.plans(cause, situation, self._guard.policy):
            if self._permits.mode(it) is Mode.AUTO and self._permits.blocked(book.incident, situation) is None:
                await self._pace(book)
                await self._do(book, it, book.add(it, Mode.AUTO, ActionState.APPROVED), cause, source)
                book.move(IncidentState.AWAITING_APPROVAL)

    # -- after a restart of the agent --------------------------------------------------------------

    async def _resume_action(self, book: Book, action: Action, cause: Cause, source: SituationSource) -> Result | None:
        """Bring a cut-off action to its end; None = plan anew."""
        if action.state is ActionState.AWAITING_APPROVAL:
            action = await self._await_decision(book, action, cause, source)
        if action.state is ActionState.APPROVED:
            late = too_late(action, self._view, self._clock)
            if late is not None:
                state, why = late
                book.update(action, state, outcome=why)
                return None
            return await self._resume_approved(book, action, cause, source)
        if action.state not in (ActionState.RUNNING, ActionState.VERIFYING):
            return None
        cut = "the agent ended before this took effect"
        if self._executor is None:
            book.update(action, ActionState.INTERRUPTED, outcome=cut)
            return None
        if action.state is ActionState.RUNNING and not await self._executor.took_effect(action):
            book.update(action, ActionState.INTERRUPTED, outcome=cut)
            return None
        return await self._executor.prove(book, action, self._view.start_seq() - 1)

    async def _resume_approved(
        self, book: Book, action: Action, cause: Cause, source: SituationSource
    ) -> Result | None:
        """The plan is made again; when the situation no longer yields it, the approval is void."""
        others = tuple(it for it in book.incident.actions if it.id != action.id)
        situation = msgspec.structs.replace(await source(cause), previous=others)
        plans = make_plans(cause, situation, self._guard.policy)
        same = next((it for it in plans if it.action == action.action and it.delta == action.delta), None)
        reason = self._permits.blocked(book.incident, situation)
        if same is None or reason is not None:
            book.update(action, ActionState.REFUSED, outcome=reason or "the situation changed: planned anew")
            return None
        return await self._do(book, same, action, cause, source)

    async def _already_back(self, book: Book, cause: Cause, source: SituationSource) -> Incident:
        """The server runs again, or still, and no agent saw how: prove that it serves."""
        book.move(IncidentState.VERIFYING)
        proofs = proofs_of(cause.finding.fault, self._guard.policy)
        seen = await Verifier(self._view, self._clock, self._view.start_seq() - 1).verify(proofs)
        if seen.outcome is Outcome.VERIFIED:
            ended = book.incident.exited_at is not None
            how = "the launcher restarted it by itself" if ended else "it came back by itself"
            note = f"{how} while no agent was there; {seen.reason}"
            return self._end.close(book, IncidentState.RESOLVED, note)
        return await self._work(book, await newest_cause(self._view, self._ledger, book, cause), source, None)

    async def _situation(self, book: Book, cause: Cause, source: SituationSource) -> Situation:
        situation = await settled(cause, source, self._clock, dead=self._view.ended())
        return msgspec.structs.replace(situation, previous=book.incident.actions)

    def _book(self, incident: Incident) -> Book:
        return Book(incident, self._ledger, self._clock, self._on_change)


def _restless(book: Book) -> bool:
    return sum(1 for it in book.incident.actions if it.state is ActionState.REFUSED) >= MOST_REFUSALS
