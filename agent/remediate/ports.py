"""What remediation needs from the rest of the agent, as small protocols.

The watcher implements :class:`Hands` over the launcher's client and :class:`View` over its collectors; the
journal implements :class:`Ledger`. Remediation holds no socket and no file of its own, which is why its whole
behaviour can be tested with a fake clock. None of the calls here may block the event loop; the ledger's are
short and synchronous.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol

from agent.model import Action, Cause, Change, Incident, State
from agent.remediate.situation import Situation

SituationSource = Callable[[Cause], Awaitable[Situation]]
"""Reads the situation now. It gets the cause, because what is probed depends on it: ``probe ptxas`` needs the
architecture that failed (``AssemblerFacts.arch``), the memory families need ``probe gpu``. ``previous`` may
be left empty: the remediator fills it in from the incident."""


class Hands(Protocol):
    """The launcher's verbs. Each raises ``agent.errors.LauncherError`` when refused or unreachable."""

    async def set_overrides(self, change: Change, incident: str) -> None:
        """Replace the whole override set; takes effect at the next start."""
        ...

    async def clear_overrides(self) -> None:
        """Drop the whole override set."""
        ...

    async def restart(self, reason: str, incident: str, *, verify_memory: bool = True) -> None:
        """Stop what runs and start anew; with ``verify_memory`` the launcher waits until GPU memory is back.

        May return as soon as the launcher accepted it, or only when the new process was started.
        """
        ...

    async def hold(self, exit_seq: int, seconds: float) -> None:
        """Ask the launcher not to restart by itself for ``seconds`` (at most 60) after exit ``exit_seq``."""
        ...

    async def end_orphans(self) -> dict[str, Any]:
        """End leftovers of the launcher's own subtree. Returns the verb's result."""
        ...

    async def probe(self, kind: str, **args: object) -> dict[str, Any]:
        """The result of a launcher probe (``gpu``, ``ptxas``, …), as it is on the wire."""
        ...

    async def status(self) -> dict[str, Any]:
        """The launcher's status, as it is on the wire. ``overrides`` is used when an agent's restart is
        resumed.
        """
        ...


class View(Protocol):
    """What the watcher sees of the server now. Synchronous methods answer from memory."""

    def state(self) -> State:
        """Liveness. STOPPED and DRAINING mean that a person asked for it: remediation steps back."""
        ...

    def frozen(self) -> bool:
        """True while ``agent freeze`` is in force, by file or by API."""
        ...

    def start_seq(self) -> int:
        """How many starts of the server were seen; grows by one at each start, whoever caused it."""
        ...

    def ended(self) -> bool:
        """True when the newest start has ended and nobody asked for it."""
        ...

    def exit_seq(self) -> int | None:
        """``seq`` of the newest exit record; None when there is none."""
        ...

    def log_seen(self, fault: str) -> bool:
        """True when an initiating line of ``fault`` was seen in the newest start."""
        ...

    def metric(self, name: str) -> float | None:
        """Sum over all series of the family ``name`` in the newest scrape of the newest start; None = not
        measured.
        """
        ...

    async def request_answered(self) -> tuple[bool | None, str]:
        """Send one small request (one token). Returns (answered, what was seen); None = it cannot be judged,
        because the server wants an API key that the agent was not given.
        """
        ...

    async def wait_change(self, timeout: float) -> None:
        """Return when state, exits, log or freeze changed, or after ``timeout`` seconds."""
        ...

    async def fresh_cause(self) -> Cause | None:
        """The cause of the newest start's death, its log read to the end; None = none can be named."""
        ...


class Ledger(Protocol):
    """The part of ``agent.journal`` that remediation uses."""

    def save_incident(self, incident: Incident) -> None:
        """Insert or replace an incident and its actions."""
        ...

    def actions_since(self, server: str, fault: str, since: datetime) -> tuple[Action, ...]:
        """Actions of all incidents of (fault, server) created since then, oldest first."""
        ...

    def claim(self, key: str) -> bool:
        """True for the first caller ever with this key, also across restarts of the agent."""
        ...

    def kv_get(self, key: str) -> str | None: ...

    def kv_set(self, key: str, value: str | None) -> None:
        """``None`` deletes."""
        ...


class Observer(Protocol):
    """Told after every change of an incident; the watcher publishes it. Must not block and must not raise."""

    def __call__(self, incident: Incident) -> None: ...
