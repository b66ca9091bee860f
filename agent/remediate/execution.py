"""Carrying out one plan: check again, prepare, change the overrides, restart, collect the proofs.

In: a plan with its action in the book. Out: what came of it (:class:`Result`), with the action's state
already journalled at every step: RUNNING before anything is touched, VERIFYING once the launcher was asked.
What was in force before is journalled too, so that a roll-back works after a restart of the agent. It does
not choose plans and does not decide what comes next.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from agent.errors import AgentError
from agent.model import Action, ActionState, Cause, Change, Clock, IncidentState, State
from agent.remediate import neighbour
from agent.remediate.book import Book
from agent.remediate.guard import Guard
from agent.remediate.hold import Holder
from agent.remediate.overrides import empty, from_wire
from agent.remediate.plan import Plan, Preparation
from agent.remediate.ports import Hands, Ledger, SituationSource, View
from agent.remediate.quantities import size
from agent.remediate.situation import Situation
from agent.remediate.verification import Outcome, Verification, Verifier

POLL_SECONDS = 2.0
RUNS = frozenset({State.STARTING, State.SERVING, State.SATURATED})


@dataclass(frozen=True, kw_only=True)
class Result:
    """``verification`` None = the server was not touched, ``reason`` says why."""

    action: Action
    reason: str
    verification: Verification | None = None

    @property
    def outcome(self) -> Outcome:
        return self.verification.outcome if self.verification is not None else Outcome.FAILED

    @property
    def served(self) -> bool:
        return self.verification is not None and self.verification.served


class Executor:
    """The only caller of the launcher's changing verbs."""

    def __init__(
        self,
        server: str,
        hands: Hands,
        view: View,
        ledger: Ledger,
        guard: Guard,
        clock: Clock,
        holder: Holder,
    ) -> None:
        self._server = server
        self._hands = hands
        self._view = view
        self._ledger = ledger
        self._guard = guard
        self._clock = clock
        self._holder = holder
        self._disproved: int | None = None

    async def carry_out(self, book: Book, plan: Plan, action: Action, cause: Cause, source: SituationSource) -> Result:
        """Do ``plan`` once. LauncherError and a precondition that is gone end up in the action's outcome."""
        now = msgspec.structs.replace(await source(cause), previous=book.incident.actions)
        refusal = self._refusal(plan, now) or self._claimed(book, action)
        if refusal is not None:
            return Result(action=book.update(action, ActionState.REFUSED, outcome=refusal), reason=refusal)
        action = book.update(action, ActionState.RUNNING)
        book.move(IncidentState.ACTING)
        self._ledger.kv_set(_before_key(action), msgspec.json.encode(now.overrides).decode())
        try:
            if plan.preparation is not Preparation.NONE:
                refused = await self._prepared(book, plan, action, cause, source)
                if refused is not None:
                    return refused
            base = await self._act(plan, cause, now, book.incident.id)
        except AgentError as error:
            return self._failed(book, action, f"the launcher: {error.message}")
        return await self.prove(book, action, base)

    async def prove(self, book: Book, action: Action, base: int) -> Result:
        """Collect the proofs of an action that was carried out; ``base`` is the start number before it."""
        action = book.update(action, ActionState.VERIFYING)
        book.move(IncidentState.VERIFYING)
        seen = await Verifier(self._view, self._clock, base).verify(action.proof)
        states = {
            Outcome.VERIFIED: ActionState.VERIFIED,
            Outcome.FAILED: ActionState.FAILED,
            Outcome.INTERRUPTED: ActionState.INTERRUPTED,
        }
        if seen.outcome is Outcome.FAILED:
            self._disproved = self._view.start_seq()
        action = book.update(action, states[seen.outcome], outcome=seen.reason, proof=seen.proofs)
        return Result(action=action, reason=seen.reason, verification=seen)

    async def roll_back(self, book: Book, action: Action, why: str) -> Action:
        """Put back the overrides that were in force before ``action``; takes effect at the next start."""
        before = self._before(action)
        if before is None or before == action.delta:
            return action
        if self._view.frozen():
            return book.update(action, action.state, outcome=f"{why}; frozen, so the change stays in force")
        try:
            found = from_wire((await self._hands.status()).get("overrides"))
            if found == before:
                if result_known(action):
                    return book.update(action, ActionState.ROLLED_BACK, outcome=f"{why}; rolled back by the launcher")
                return action  # it was never set
            if found != action.delta:
                kept = f"{why}; somebody else changed the overrides since, so they stay as they are"
                return book.update(action, action.state, outcome=kept)
            if empty(before):
                await self._hands.clear_overrides()
            else:
                await self._hands.set_overrides(before, book.incident.id)
        except AgentError as error:
            return book.update(action, action.state, outcome=f"{why}; not rolled back: {error.message}")
        return book.update(action, ActionState.ROLLED_BACK, outcome=f"{why}; rolled back")

    async def took_effect(self, action: Action) -> bool:
        """After a restart of the agent: whether a RUNNING action had reached the launcher."""
        if self._view.ended() or self._view.state() not in RUNS:
            return False
        try:
            return from_wire((await self._hands.status()).get("overrides")) == action.delta
        except AgentError:
            return False

    # -- pieces ------------------------------------------------------------------------------------

    def _refusal(self, plan: Plan, now: Situation) -> str | None:
        """Everything that may have changed since the plan was made, asked right before acting."""
        if self._view.frozen():
            return "frozen: agent freeze is in force"
        if now.state in (State.STOPPED, State.DRAINING):
            return "a person stopped the server"
        broken = self._guard.breaker_open(self._server)
        if broken is not None:
            return f"the circuit breaker is open: {broken}"
        gone = plan.check(now)
        return f"precondition gone: {gone}" if gone is not None else None

    def _claimed(self, book: Book, action: Action) -> str | None:
        """One execution for each step of an incident, whatever agent process asks. The step is the action's place
        in the incident, so an action that was refused takes no other's claim."""
        step = next(place for place, it in enumerate(book.incident.actions, 1) if it.id == action.id)
        key = f"remediate/{self._server}/{book.incident.id}/{step}"
        return None if self._ledger.claim(key) else "this step was carried out already"

    async def _act(self, plan: Plan, cause: Cause, now: Situation, incident: str) -> int:
        """Set and restart; returns the start number that the proofs count from."""
        if plan.delta == now.overrides and self._already_back(cause):
            # The launcher was faster (it restarts by itself when nobody holds it): a second restart would
            # only lose requests. The start that is running is the one to prove.
            return self._view.start_seq() - 1
        if plan.delta != now.overrides:
            await self._set(plan.delta, incident)
        base = self._view.start_seq()
        await self._hands.restart(f"{plan.action}: {plan.change}", incident, verify_memory=True)
        return base

    def _already_back(self, cause: Cause) -> bool:
        """Whether a start runs that nobody has judged yet; one that failed its proofs is no repair."""
        alive = not self._view.ended() and self._view.state() in RUNS and cause.finding.fault != "engine-hang"
        return alive and 0 < self._view.start_seq() != self._disproved

    async def _set(self, delta: Change, incident: str) -> None:
        if empty(delta):
            await self._hands.clear_overrides()
        else:
            await self._hands.set_overrides(delta, incident)

    async def _prepared(
        self, book: Book, plan: Plan, action: Action, cause: Cause, source: SituationSource
    ) -> Result | None:
        """What must come before the restart. It may take minutes, so everything is asked once more after it."""
        await self._holder.renew()
        if plan.preparation is Preparation.END_ORPHANS:
            ended = (await self._hands.end_orphans()).get("ended")
            if not ended:
                gone = "precondition gone: nothing that holds the card is in the launcher's own subtree"
                return Result(action=book.update(action, ActionState.REFUSED, outcome=gone), reason=gone)
        elif (problem := await self._wait_for_memory(plan, cause, source)) is not None:
            return self._failed(book, action, problem)
        refusal = self._refusal(plan, await source(cause))
        return self._failed(book, action, refusal) if refusal is not None else None

    async def _wait_for_memory(self, plan: Plan, cause: Cause, source: SituationSource) -> str | None:
        needed = plan.needed_bytes or 0
        deadline = self._clock.monotonic() + plan.wait_seconds
        while True:
            cards = neighbour.used_cards(cause, await source(cause))
            free = [it.free_bytes for it in cards if it.free_bytes is not None]
            if not free or len(free) < len(cards):
                return await self._wait_blind(plan)
            if min(free) >= needed or self._taken_away():
                return None
            if self._view.frozen() or self._clock.monotonic() >= deadline:
                waited = "frozen" if self._view.frozen() else f"after {plan.wait_seconds:g} s"
                return f"{waited}: {size(min(free))} free, {size(needed)} needed"
            await self._holder.renew()
            await self._clock.sleep(POLL_SECONDS)

    def _taken_away(self) -> bool:
        """A person stopped the server, or the launcher has started it: there is nothing to wait for."""
        return not self._view.ended() or self._view.state() in (State.STOPPED, State.DRAINING)

    async def _wait_blind(self, plan: Plan) -> str | None:
        """The card cannot be measured: wait and let vLLM's own check at start decide."""
        await self._holder.pause(min(plan.wait_seconds, neighbour.BLIND_WAIT_SECONDS), self._view.frozen)
        return "frozen" if self._view.frozen() else None

    def _failed(self, book: Book, action: Action, reason: str) -> Result:
        return Result(action=book.update(action, ActionState.FAILED, outcome=reason), reason=reason)

    def _before(self, action: Action) -> Change | None:
        text = self._ledger.kv_get(_before_key(action))
        if text is None:
            return None
        try:
            return msgspec.json.decode(text.encode(), type=Change)
        except msgspec.MsgspecError:
            return None


def result_known(action: Action) -> bool:
    """Whether the change reached a start of the server."""
    return any(proof.passed is not None for proof in action.proof)


def forget_before(ledger: Ledger, action: Action) -> None:
    """The incident is closed: nothing of it will be rolled back any more."""
    ledger.kv_set(_before_key(action), None)


def _before_key(action: Action) -> str:
    return f"remediate/before/{action.id}"
