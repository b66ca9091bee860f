"""Guardrails: what keeps a repair from making things worse.

Asked before every action: is acting frozen, is the breaker open, is the budget of this (fault, server) used
up, is the server one node of several, how long must we wait first. Everything that must survive a restart of
the agent is read from and written to the ledger at the moment it is needed; the guard keeps no counters of
its own, so two agents in a row cannot spend one budget twice. Only the lock "one action at a time" lives in
the process, since the process holds the server's launcher alone.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import msgspec

from agent.config import Settings
from agent.model import Action, ActionState, Clock, Incident, parse_rfc3339, rfc3339
from agent.remediate.ports import Ledger

NEVER_EXECUTED = frozenset(
    {
        ActionState.PROPOSED,
        ActionState.AWAITING_APPROVAL,
        ActionState.APPROVED,
        ActionState.REFUSED,
        ActionState.DENIED,
        ActionState.EXPIRED,
    }
)

NOT_HELD = frozenset({ActionState.FAILED, ActionState.ROLLED_BACK})

# What the kernel killed for memory is killed again as surely: one repair in the window, then a person.
ONE_REPAIR = frozenset({"host-oom-kill"})


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits. ``backoff_seconds[n]`` is waited before the (n+1)-th repair of one fault; the last value
    repeats.
    """

    dry_run: bool = False
    budget_actions: int = 3
    budget_window_seconds: float = 3600
    budget_steps: int = 4
    backoff_seconds: tuple[float, ...] = (0, 1, 2, 4, 8, 16, 32, 60)
    breaker_failures: int = 3
    breaker_window_seconds: float = 900
    approval_expires_seconds: float = 3600
    serving_seconds: float = 900
    request_seconds: float = 60
    hold_seconds: float = 60

    @classmethod
    def from_settings(cls, settings: Settings) -> Policy:
        """The policy as the configuration states it."""
        return cls(
            dry_run=settings.dry_run,
            budget_actions=settings.budget.actions,
            budget_window_seconds=settings.budget.window_seconds,
            budget_steps=settings.budget.steps,
            backoff_seconds=tuple(settings.backoff_seconds),
            breaker_failures=settings.breaker.failures,
            breaker_window_seconds=settings.breaker.window_seconds,
            approval_expires_seconds=settings.approval_expires_seconds,
            serving_seconds=settings.verify.serving_seconds,
            request_seconds=settings.verify.request_seconds,
            hold_seconds=settings.verify.hold_seconds,
        )


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger keeps of one server's breaker. Times RFC 3339."""

    opened_at: str | None = None
    reason: str | None = None
    failures: tuple[str, ...] = ()


class Guard:
    """One per agent; every method names the server it speaks of."""

    def __init__(self, ledger: Ledger, clock: Clock, policy: Policy) -> None:
        self._ledger = ledger
        self._clock = clock
        self.policy = policy
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, server: str) -> asyncio.Lock:
        """Held while an incident of ``server`` is pursued: one action at a time."""
        return self._locks.setdefault(server, asyncio.Lock())

    # -- circuit breaker ---------------------------------------------------------------------------

    def breaker(self, server: str) -> BreakerRecord:
        """The breaker as recorded; ``opened_at`` None = closed. A damaged record counts as closed."""
        text = self._ledger.kv_get(_breaker_key(server))
        if text is None:
            return BreakerRecord()
        try:
            return msgspec.json.decode(text.encode(), type=BreakerRecord)
        except msgspec.MsgspecError:
            return BreakerRecord()

    def breaker_open(self, server: str) -> str | None:
        """Why no action is taken on ``server`` until a person resets it, or None."""
        record = self.breaker(server)
        return record.reason if record.opened_at is not None else None

    def open_breaker(self, server: str, reason: str) -> None:
        """Stop acting on ``server``; the first reason stands."""
        record = self.breaker(server)
        if record.opened_at is None:
            opened = msgspec.structs.replace(record, opened_at=rfc3339(self._clock.now()), reason=reason)
            self._write(server, opened)

    def reset_breaker(self, server: str) -> bool:
        """A person closes the breaker; failures and the budget count anew. True if it was open."""
        was_open = self.breaker_open(server) is not None
        self._write(server, BreakerRecord())
        self._ledger.kv_set(_reset_key(server), rfc3339(self._clock.now()))
        return was_open

    def record_failure(self, server: str, what: str) -> None:
        """One failed repair; opens the breaker when the window holds too many."""
        now = self._clock.now()
        since = now - timedelta(seconds=self.policy.breaker_window_seconds)
        record = self.breaker(server)
        recent = (*(at for at in record.failures if parse_rfc3339(at) > since), rfc3339(now))
        self._write(server, msgspec.structs.replace(record, failures=recent))
        if len(recent) >= self.policy.breaker_failures:
            minutes = self.policy.breaker_window_seconds / 60
            self.open_breaker(server, f"{len(recent)} failed repairs within {minutes:g} minutes, the last: {what}")

    def _write(self, server: str, record: BreakerRecord) -> None:
        self._ledger.kv_set(_breaker_key(server), msgspec.json.encode(record).decode())

    # -- budget and backoff ------------------------------------------------------------------------

    def entries(self, server: str, fault: str, incident: str) -> int:
        """Incidents of (fault, server) other than ``incident`` that were acted on within the window."""
        since = self._clock.now() - timedelta(seconds=self.policy.budget_window_seconds)
        actions = self._ledger.actions_since(server, fault, max(since, self._last_reset(server, since)))
        return len({action.incident for action in actions if executed(action)} - {incident})

    def _last_reset(self, server: str, default: datetime) -> datetime:
        text = self._ledger.kv_get(_reset_key(server))
        return parse_rfc3339(text) if text else default

    def budget_used_up(self, server: str, fault: str, incident: str) -> str | None:
        """Why the budget allows no further repair, or None."""
        entries = self.entries(server, fault, incident)
        allowed = min(self.policy.budget_actions, 1) if fault in ONE_REPAIR else self.policy.budget_actions
        if entries < allowed:
            return None
        minutes = self.policy.budget_window_seconds / 60
        return f"{entries} repairs of {fault} within {minutes:g} minutes: the budget of {allowed} is used up"

    def refusal(self, server: str, incident: Incident) -> str | None:
        """Why ``incident`` gets no (further) action, or None. A used-up budget opens the breaker."""
        broken = self.breaker_open(server)
        if broken is not None:
            return f"the circuit breaker was open already ({broken})"
        done = [action for action in incident.actions if executed(action)]
        if not done:
            used_up = self.budget_used_up(server, incident.fault, incident.id)
            if used_up is not None:
                self.open_breaker(server, used_up)
            return used_up
        return self._steps_used_up(server, done)

    def _steps_used_up(self, server: str, done: list[Action]) -> str | None:
        """An interrupted step proved nothing, so it counts half; yet it counts, or two faults in turn never
        end.
        """
        interrupted = sum(1 for action in done if action.state is ActionState.INTERRUPTED)
        if len(done) - interrupted / 2 < self.policy.budget_steps:
            return None
        reason = f"{len(done)} steps did not hold: the steps of one incident are used up"
        self.open_breaker(server, reason)
        return reason

    def gave_up(self, server: str, incident: Incident, reason: str) -> None:
        """An incident went to a person; a failed repair when something was done and did not hold."""
        if any(executed(action) and action.state in NOT_HELD for action in incident.actions):
            self.record_failure(server, f"{incident.fault}: {reason}")

    def backoff(self, server: str, fault: str, incident: str) -> float:
        """Seconds to wait before the first action of ``incident``."""
        steps = self.policy.backoff_seconds
        return steps[min(self.entries(server, fault, incident), len(steps) - 1)] if steps else 0.0


def executed(action: Action) -> bool:
    """True when the action touched the server."""
    return action.state not in NEVER_EXECUTED and action.started_at is not None


def _breaker_key(server: str) -> str:
    return f"remediate/breaker/{server}"


def _reset_key(server: str) -> str:
    return f"remediate/breaker-reset/{server}"
