"""The probes' answer: a pure function of what the launcher knows and what the watcher last said.

In: facts. Out: ``/livez``, ``/readyz``, a state and its reason. Only a fresh ``stalled`` verdict with no
action under way fails ``/livez``, so a kubelet never kills a server that is repaired, loads slowly or is
merely not watched.
"""

from __future__ import annotations

from dataclasses import dataclass

FRESH_SECONDS = 10.0
READY_STATES = frozenset({"serving", "saturated"})
NOT_READY_STATES = frozenset({"starting", "dead", "repairing", "draining", "paused", "stopped"})
VERDICT_STATES = READY_STATES | NOT_READY_STATES | {"stalled", "unknown"}


@dataclass(frozen=True)
class Opinion:
    """The watcher's verdict. ``acting``: an action runs or is planned. ``at`` is monotonic seconds."""

    state: str
    reason: str
    acting: bool
    at: float


@dataclass(frozen=True)
class Facts:
    """What the launcher sees by itself. ``started`` is monotonic, None while no server process lives."""

    now: float
    started: float | None
    ready: bool
    stopping: str | None = None
    held: bool = False
    restarting: bool = False
    breaker_open: bool = False
    frozen: bool = False
    opinion: Opinion | None = None


@dataclass(frozen=True)
class Answer:
    """``ready`` None means "ask vLLM's own /health"."""

    state: str
    reason: str
    live: bool
    ready: bool | None


def judge(facts: Facts) -> Answer:
    """The table of probes (docs/probes.md)."""
    if facts.stopping is not None:
        state = "draining" if facts.started is not None else "stopped"
        return Answer(state, facts.stopping, True, False)
    if facts.started is None:
        return _without_server(facts)
    opinion = _fresh(facts)
    if opinion is None or opinion.state == "unknown":
        if not facts.ready:
            return Answer("starting", "vLLM's /health has not answered 200 yet", True, False)
        reason = opinion.reason if opinion else "no watcher has judged within 10 s"
        return Answer("unknown", reason, True, None)
    if opinion.state == "stalled":
        return Answer("stalled", opinion.reason, opinion.acting, False)
    return Answer(opinion.state, opinion.reason, True, opinion.state in READY_STATES)


def _without_server(facts: Facts) -> Answer:
    if facts.breaker_open:
        return Answer("dead", "breaker open: a person resets it", True, False)
    if facts.frozen:
        return Answer("dead", "frozen: nothing is restarted until the freeze ends", True, False)
    if facts.held or facts.restarting:
        return Answer("repairing", "held by the watcher" if facts.held else "restart pending", True, False)
    return Answer("dead", "no server process", True, False)


def _fresh(facts: Facts) -> Opinion | None:
    """The verdict if it is young and about this server process, not about the one before."""
    opinion = facts.opinion
    if opinion is None or facts.started is None or opinion.at < facts.started:
        return None
    return opinion if facts.now - opinion.at < FRESH_SECONDS else None
