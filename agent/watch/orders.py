"""What the watch itself asks of the launcher, beside the repairs: to wait for a repair, or to start the server again.

In: the hands on one server, None in attach mode, where nothing is asked. Out: the launcher's verbs. A refusal is said
on the terminal and is no error: the launcher then goes by its own bounded policy.
"""

from __future__ import annotations

from agent.errors import AgentError
from agent.model import Clock
from agent.remediate import Hands
from agent.watch.evidence import ServerEvidence
from agent.watch.narrate import Narrator

HOLD_SECONDS = 60.0
HOLD_RENEW_SECONDS = 20.0


class Orders:
    """Orders to the launcher of one server."""

    def __init__(
        self, server: str, hands: Hands | None, evidence: ServerEvidence, clock: Clock, narrator: Narrator
    ) -> None:
        self._server = server
        self._hands = hands
        self._evidence = evidence
        self._clock = clock
        self._narrator = narrator
        self._held_at: float | None = None

    def began(self) -> None:
        """A new start: what was held is over."""
        self._held_at = None

    async def hold(self) -> None:
        """Ask the launcher to leave the newest exit to the agent for HOLD_SECONDS."""
        seq = self._evidence.exit_seq()
        if self._hands is None or seq is None:
            return
        self._held_at = self._clock.monotonic()
        try:
            await self._hands.hold(seq, HOLD_SECONDS)
        except AgentError as error:
            self._narrator.line(f"{self._server}: the launcher does not wait for the agent: {error.message}")

    async def keep_holding(self) -> None:
        """While a restart would do harm: ask again before the hold runs out."""
        if self._held_at is None or self._clock.monotonic() - self._held_at > HOLD_RENEW_SECONDS:
            await self.hold()

    async def restart(self, reason: str) -> None:
        """Start the server again without an incident."""
        if self._hands is None:
            return
        try:
            await self._hands.restart(reason, "", verify_memory=True)
        except AgentError as error:
            self._narrator.line(f"{self._server}: the launcher did not restart it: {error.message}")
