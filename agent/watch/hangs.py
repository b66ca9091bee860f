"""From a stalled server to an incident, and to its repair where it stays stalled.

In: the judged standing, round by round. Out: an incident with what proves the stall, opened at once; the repair when it
was stalled for 30 seconds without a break; the incident closed where the engine goes on before anything was begun. Only
``stalled`` counts: a server that is suspect, paused, draining, loading or saturated never comes here, and one that
falls back to ``unknown`` is waited for, since its silence is no evidence any more.

A process that somebody stopped (SIGSTOP) is repaired as any other hang, because requests wait behind it all the same;
the incident names the pid and `kill -CONT`. One that a debugger holds (state t) is left to the person behind it: to end
it would end the examination that may find the cause.

A life of the agent that ends meanwhile leaves the incident open, with the life of the server that it is about: the next
one goes on waiting where that life still runs, and asks nothing of the server for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from agent.collect import ProcessReading, ProcessState
from agent.journal import Journal
from agent.model import (
    ActionState,
    Cause,
    Clock,
    Confidence,
    Domain,
    Evidence,
    Finding,
    Incident,
    IncidentState,
    Mode,
    Retry,
    Severity,
    State,
    rfc3339,
)
from agent.watch.activity import owners, short_name
from agent.watch.deaths import Silence
from agent.watch.evidence import ServerEvidence
from agent.watch.keeper import IncidentKeeper

HANG = "engine-hang"
# A stall that passes by itself (a card that recovers, a process that somebody lets go on) costs nobody a restart.
CONFIRM_SECONDS = 30.0
GOES_ON = (State.SERVING, State.SATURATED, State.PAUSED)
_NOT_BEGUN = (
    ActionState.PROPOSED,
    ActionState.AWAITING_APPROVAL,
    ActionState.APPROVED,
    ActionState.REFUSED,
    ActionState.DENIED,
    ActionState.EXPIRED,
)
_WORDS = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "blocked in the kernel",
    "Z": "ended, and nobody took note",
}


class Watch(Protocol):
    """What is used of :class:`agent.watch.server.ServerWatch`."""

    evidence: ServerEvidence
    keeper: IncidentKeeper

    @property
    def repairing(self) -> bool:
        """A cause is being named or repaired right now."""

    def begin_repair(self) -> None:
        """Name the cause of the open incident and repair it."""


class Hangs:
    """One server's. ``stop_repair`` ends a pursuit that has not touched the server yet; ``name`` is the server's."""

    def __init__(
        self, watch: Watch, stop_repair: Callable[[], Awaitable[None]], clock: Clock, journal: Journal, name: str
    ) -> None:
        self._watch = watch
        self._stop_repair = stop_repair
        self._journal = journal
        self._key = f"watch/hang/{name}"
        self._confirm = Silence(clock, CONFIRM_SECONDS)
        # Who has just come sees an engine that stands still as serving: it must serve for a while to have gone on.
        self._taken_up = False
        self._well = Silence(clock, CONFIRM_SECONDS)
        self._incident: str | None = None
        # A stall that was seen through, whatever came of it, waits for a person until the engine goes on.
        self._handled_start: int | None = None

    def again(self) -> None:
        """A stall that was left alone (frozen, the breaker open) is taken up again."""
        self._handled_start = None

    def takes_up(self, incident: Incident) -> bool:
        """Whether this is a stall, left open by an earlier life of the agent, of a server that still runs as it did
        then and for which nothing was done yet. It is this one's from here on.
        """
        if not _untouched(incident) or self._journal.kv_get(self._key) != self._life(incident):
            return False
        self._incident, self._taken_up = incident.id, True
        self._handled_start = self._watch.evidence.start_seq()
        cut = "the agent ended before this took effect"
        actions = tuple(
            msgspec.structs.replace(one, state=ActionState.INTERRUPTED, outcome=cut)
            if one.state is ActionState.APPROVED and one.mode is Mode.AUTO
            else one
            for one in incident.actions
        )
        if actions != incident.actions:
            self._watch.keeper.save(msgspec.structs.replace(incident, actions=actions, state=IncidentState.OPEN))
        return True

    def _life(self, incident: Incident) -> str:
        """The incident with the start of the server that it is about, as far as the launcher tells starts apart."""
        status = self._watch.evidence.status
        return "/".join(str(it) for it in (incident.id, *map(status.get, ("started_at", "child_pid", "exit_seq"))))

    async def look(self) -> None:
        """One round."""
        evidence, active = self._watch.evidence, self._watch.keeper.active
        state = evidence.state()
        mine = active if active is not None and active.id == self._incident else None
        if state is State.STALLED:
            self._well.clear()
            self._taken_up = False
            self._stalled(active, mine)
            return
        self._confirm.clear()
        if state not in GOES_ON:
            self._well.clear()
        elif not self._taken_up or self._lasts():
            self._handled_start = None
            if mine is not None and _untouched(mine):
                await self._went_on(mine)

    def _lasts(self) -> bool:
        """Whether it has served without a break for the time that a stall needs to show."""
        if not self._well.begun:
            self._well.begin()
        self._taken_up = not self._well.over()
        return not self._taken_up

    def _stalled(self, active: Incident | None, mine: Incident | None) -> None:
        start = self._watch.evidence.start_seq()
        if active is None and self._handled_start != start:
            self._handled_start = start
            finding = hang_of(self._watch.evidence).finding
            opened = self._watch.keeper.open(finding.fault, finding.summary, finding.evidence, exited_at=None)
            self._incident = opened.id
            self._journal.kv_set(self._key, self._life(opened))
            self._confirm.begin()
        elif mine is not None and not self._watch.repairing and all(one.state.final for one in mine.actions):
            self._confirmed(mine)

    def _confirmed(self, mine: Incident) -> None:
        if not self._confirm.begun:
            self._confirm.begin()
        held = debugged(self._watch.evidence)
        if held is not None:
            self._confirm.begin()  # what is let go gets the half minute again
            self._leave_alone(mine, held)
        elif self._confirm.over():
            self._confirm.clear()
            self._watch.begin_repair()

    def _leave_alone(self, mine: Incident, held: ProcessState) -> None:
        note = (
            f"a debugger holds {short_name(held)} (pid {held.pid}, state t), so nothing is done: detach it, or end it, "
            "and the server goes on or is repaired"
        )
        if mine.note != note:
            self._watch.keeper.save(msgspec.structs.replace(mine, note=note))

    async def _went_on(self, mine: Incident) -> None:
        """Nothing was done yet: what only waits (its turn, an approval) is given up."""
        await self._stop_repair()
        active = self._watch.keeper.active
        if active is None or active.id != mine.id or not _untouched(active):
            return
        void = "the engine went on before this was done"
        actions = tuple(
            one if one.state.final else msgspec.structs.replace(one, state=ActionState.INTERRUPTED, outcome=void)
            for one in active.actions
        )
        note = f"it went on by itself ({self._watch.evidence.standing.reason}) before anything was done"
        self._watch.keeper.close(msgspec.structs.replace(active, actions=actions), IncidentState.RESOLVED, note)


def _untouched(incident: Incident) -> bool:
    """Whether nothing was done to the server for it yet."""
    return not incident.state.closed and all(one.state in _NOT_BEGUN for one in incident.actions)


def debugged(evidence: ServerEvidence) -> ProcessState | None:
    """A process of the server that a debugger holds."""
    return next((one for one in _still(evidence) if one.state == "t"), None)


def hang_of(evidence: ServerEvidence) -> Cause:
    """The cause that the standing alone proves: which engine, since when, why."""
    stopped = next((one for one in _still(evidence) if one.state == "T"), None)
    summary = f"the server hangs: {evidence.standing.reason}"
    if stopped is not None:
        summary += f"; stopped from outside: `kill -CONT {stopped.pid}` lets it go on"
    finding = Finding(
        fault=HANG,
        confidence=Confidence.LIKELY,
        severity=Severity.CRITICAL,
        summary=summary,
        evidence=(*_engines(evidence), *_processes(evidence), *_canaries(evidence), *_health(evidence)),
    )
    return Cause(finding=finding, retry=Retry.MAY, domain=Domain.UNKNOWN)


def joined(named: Cause | None, hang: Cause | None) -> Cause | None:
    """What the log names wins over the bare hang, unless it is a guess or was survived; the stall is its evidence."""
    if named is None or hang is None:
        return named or hang
    finding = named.finding
    same = finding.fault == HANG
    guess = finding.confidence is Confidence.POSSIBLE or finding.severity is not Severity.CRITICAL
    if guess and not same:
        return hang
    confidence = Confidence.LIKELY if finding.confidence is Confidence.POSSIBLE else finding.confidence
    explains = finding.explains if same else tuple(dict.fromkeys((*finding.explains, HANG)))
    return msgspec.structs.replace(
        named,
        finding=msgspec.structs.replace(
            finding,
            confidence=confidence,
            severity=Severity.CRITICAL,
            explains=explains,
            evidence=(*finding.evidence, *hang.finding.evidence),
        ),
    )


# -- what is seen ----------------------------------------------------------------------------------------------


def _engines(evidence: ServerEvidence) -> tuple[Evidence, ...]:
    stalled = {name: one for name, one in evidence.engines.items() if one.state is State.STALLED}
    found = stalled or {"": evidence.standing}
    return tuple(
        Evidence(
            source="liveness",
            where=f"engine {name}" if name else "server",
            text=f"stalled since {rfc3339(one.since)}: {one.reason}",
        )
        for name, one in sorted(found.items())
    )


def _still(evidence: ServerEvidence) -> tuple[ProcessState, ...]:
    reading = evidence.processes
    if not isinstance(reading, ProcessReading):
        return ()
    owned = owners(reading.members)
    return tuple(one for one in reading.members if one.state in _WORDS and owned)


def _processes(evidence: ServerEvidence) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source="processes",
            where=f"pid {one.pid}",
            text=f"{short_name(one)} is {_WORDS[one.state]} (state {one.state}), {one.cpu_seconds:.1f} s of CPU in all",
        )
        for one in _still(evidence)
    )


def _canaries(evidence: ServerEvidence) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source="canary",
            where=f"engine {name}",
            text=f"{one.outcome.value} after {one.ended_at - one.sent_at:.0f} s: {one.detail}",
        )
        for name, one in sorted(evidence.canaries.items())
    )


def _health(evidence: ServerEvidence) -> tuple[Evidence, ...]:
    health = evidence.health
    return () if health is None else (Evidence(source="health", where="/health", text=health.detail),)
