"""The note that hands an incident to a person: how the server stands, what was tried, what to do now.

In: the closed incident, why the agent stops, how the server stands, the advice for its cause. Out: a few lines
for somebody who was woken up: the state first, then the attempts, then numbered steps with the commands as they
are typed. It repeats neither the summary nor the evidence, which stand above it wherever it is shown, and it
promises nothing: a command stands there only where it does what the line says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from agent.model import Action, ActionState, Incident, State
from agent.remediate.guard import executed

TRIED_WORDS = {
    ActionState.FAILED: "did not hold",
    ActionState.ROLLED_BACK: "did not hold, rolled back",
    ActionState.INTERRUPTED: "proved nothing",
    ActionState.VERIFIED: "held",
}
ASKED_WORDS = {
    ActionState.DENIED: "denied",
    ActionState.EXPIRED: "nobody approved it in time",
    ActionState.PROPOSED: "proposed only",
    ActionState.REFUSED: "not begun",
}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the server is left. ``down``: its process has ended and nobody asked for it. ``owned``: a launcher owns it,
    so that the agent can start it. ``breaker``: the agent's circuit breaker is open."""

    down: bool
    state: State
    frozen: bool
    owned: bool
    breaker: bool
    dry_run: bool


def handover(incident: Incident, reason: str, standing: Standing, advice: tuple[str, ...]) -> str:
    """Lines that also read well when a display joins them."""
    lines = [_state(standing, reason)]
    lines.append(_attempts(incident.actions))
    steps = [f"`agent incident {incident.id}` shows the evidence and the arithmetic.", *advice]
    last = _last_step(incident, standing)
    if last:
        steps.append(last)
    lines += [f"{number}. {_sentence(step)}" for number, step in enumerate(steps, 1)]
    return "\n".join(lines)


def _state(standing: Standing, reason: str) -> str:
    if not standing.down:
        return _sentence(f"The server is {standing.state.value} and is left as it is: {reason}")
    if standing.breaker and standing.owned and not standing.dry_run:
        return _sentence(f"The server is DOWN and stays down until a person acts (circuit breaker open): {reason}")
    if standing.frozen:
        why = "" if reason.startswith("frozen") else f": {reason}"
        return _sentence(f"The server is DOWN and stays down while frozen{why}")
    if standing.owned:
        return _sentence(f"The server is DOWN; the launcher starts it again by its own policy: {reason}")
    return _sentence(f"The server is DOWN: {reason}")


def _attempts(actions: tuple[Action, ...]) -> str:
    """What was done, then what was only asked or proposed."""
    tried = _in_order(it for it in actions if executed(it))
    left = _in_order(it for it in actions if it.state in ASKED_WORDS)
    first = f"Tried: {tried}." if tried else "Nothing was changed."
    return f"{first} Not done: {left}." if left else first


def _in_order(actions: Iterable[Action]) -> str:
    """Steps that changed and ended alike are told once, with their number."""
    told = Counter(_told(it) for it in actions)
    return "; ".join(f"{number} times {one}" if number > 1 else one for one, number in told.items())


def _told(action: Action) -> str:
    word = TRIED_WORDS.get(action.state) or ASKED_WORDS.get(action.state) or action.state.value
    why = f", {action.outcome}" if action.outcome and action.state in TRIED_WORDS else ""
    return f"{action.change.partition(', attempt ')[0]} ({word}{why})"


def _last_step(incident: Incident, standing: Standing) -> str | None:
    """The command that ends the incident's consequences."""
    if not standing.owned:
        return "start the server again where it was started: the agent only watches it" if standing.down else None
    if standing.dry_run:
        return None
    reset = f"agent breaker reset {incident.server}"
    if standing.frozen:
        then = f" and `{reset}`" if standing.breaker else ""
        return f"`agent thaw`{then}: the agent then acts again"
    if not standing.breaker:
        return None
    if standing.down:
        return (
            f"`{reset}` starts it again and lets the agent act; after a change of the command itself, first stop the "
            "launcher and start it with the new command"
        )
    return f"`{reset}` lets the agent act on this server again"


def _sentence(text: str) -> str:
    text = text.rstrip(". ")
    return f"{text}."
