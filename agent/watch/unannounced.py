"""The deaths that no exit record announces, looked for in every round of polling.

In: what is known of one server (its evidence, its source, its open incident). Out: calls to the watch over it: open an
incident early, take the server for gone, begin the repair; or an incident closed because the server went on. It reads
nothing by itself, so a look costs nothing.
"""

from __future__ import annotations

from typing import Protocol

from agent.model import Clock, Evidence, IncidentState, State
from agent.watch.deaths import Silence, dead_engine, first_sight
from agent.watch.evidence import ServerEvidence
from agent.watch.keeper import IncidentKeeper
from agent.watch.source import Source
from agent.watch.startlog import StartLog

# A fatal line is followed by the exit within seconds (EngineCore killed: 0.9 s; scheduler assertion: 3.1 s).
FATAL_GRACE_SECONDS = 30.0
# A launcher that is restarted (with its container, say) is back within this time, and then tells for itself.
ALONE_SECONDS = 30.0


class Watch(Protocol):
    """What is used of :class:`agent.watch.server.ServerWatch`."""

    log: StartLog
    evidence: ServerEvidence
    keeper: IncidentKeeper
    source: Source

    @property
    def repairing(self) -> bool:
        """A cause is being named or repaired right now."""

    def open_early(self, fault: str, summary: str, seen: Evidence) -> None:
        """Open an incident before the process ends."""

    def gone(self) -> None:
        """The server answers no more and no exit will be told."""

    def begin_repair(self) -> None:
        """Name the cause of the open incident and repair it."""


class Unannounced:
    """``silence`` runs from a fatal line on, until the exit or a person's stop ends it."""

    def __init__(self, watch: Watch, silence: Silence, clock: Clock) -> None:
        self._watch = watch
        self._silence = silence
        self._alone = Silence(clock, ALONE_SECONDS)
        self._dead_start: int | None = None

    def look(self) -> None:
        """One round."""
        self._dead_without_exit()
        self._found_dead()
        self._abandoned()
        self._after_silence()

    def thawed(self) -> None:
        """A dead engine that was left alone while frozen is taken up again."""
        self._dead_start = None

    def _dead_without_exit(self) -> None:
        """/health says that the engine is dead, no line said why, and the process stays."""
        evidence, owned = self._watch.evidence, self._watch.source.hands is not None
        here = owned and evidence.state() is State.DEAD and not evidence.ended()
        start = evidence.start_seq()
        if here and self._watch.keeper.active is None and self._dead_start != start:
            self._dead_start = start  # once: what was not repaired then (the breaker is open, say) waits for a person
            self._watch.open_early(*dead_engine(evidence.standing.reason))

    def _found_dead(self) -> None:
        """Attach mode: it did not answer when we came, and its log says that it could not go on."""
        evidence, source = self._watch.evidence, self._watch.source
        never_seen = source.hands is None and evidence.start_seq() == 0 and not evidence.ended()
        if not never_seen or not evidence.refused() or not source.caught_up():
            return
        if any(signal.fatal for signal in self._watch.log.signals) and self._watch.keeper.active is None:
            self._watch.gone()

    def _abandoned(self) -> None:
        """Launcher and server are both gone and no exit was told: nobody else will say it, and nobody can repair it."""
        evidence, source, keeper = self._watch.evidence, self._watch.source, self._watch.keeper
        known = evidence.ended() or evidence.state() in (State.STOPPED, State.DRAINING)
        if source.hands is None or source.trouble is None or known or not evidence.refused():
            self._alone.clear()
            return
        if not self._alone.begun:
            self._alone.begin()
        if self._alone.over() and keeper.active is None:
            evidence.saw_gone()
            fault, summary, seen = first_sight(None, self._watch.log.signals)
            incident = keeper.open(fault, summary, seen, exited_at=None)
            note = f"the launcher is gone too ({source.trouble.reason}): start the server under it again"
            keeper.close(incident, IncidentState.UNRESOLVED, note)

    def _after_silence(self) -> None:
        """A fatal line without an exit: the server either went on, or it hangs there with a dead engine."""
        active = self._watch.keeper.active
        if not self._silence.over() or active is None or self._watch.repairing:
            return
        self._silence.clear()
        if self._watch.evidence.state() in (State.SERVING, State.SATURATED, State.PAUSED):
            note = f"the server went on serving for {FATAL_GRACE_SECONDS:g} s after the line"
            self._watch.keeper.close(active, IncidentState.RESOLVED, note)
            return
        self._watch.begin_repair()
