"""Keeping a dead server on hold while the agent decides or waits.

The launcher restarts by itself when nobody holds it (2 s, then at most 60 s a hold). Renewed every 20 s, so
that one lost call costs nothing. A refusal is no error here: the launcher then restarts, which is what it
should do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from agent.errors import AgentError
from agent.model import Clock
from agent.remediate.ports import Hands, View

HOLD_SECONDS = 60.0
RENEW_SECONDS = 20.0


class Holder:
    """Holds one server."""

    def __init__(self, hands: Hands | None, view: View, clock: Clock) -> None:
        self._hands = hands
        self._view = view
        self._clock = clock
        self._renewed: tuple[int, float] | None = None

    async def renew(self) -> None:
        """Ask for another 60 s, when the server is dead and the last asking is 20 s old."""
        seq = self._view.exit_seq()
        if self._hands is None or seq is None or not self._view.ended():
            return
        now = self._clock.monotonic()
        if self._renewed is not None and self._renewed[0] == seq and now - self._renewed[1] < RENEW_SECONDS:
            return
        self._renewed = (seq, now)
        try:
            await self._hands.hold(seq, HOLD_SECONDS)
        except AgentError:
            return

    async def release(self) -> None:
        """The agent will do nothing about this death: the launcher's own policy decides at once."""
        seq = self._view.exit_seq()
        if self._hands is None or seq is None or not self._view.ended():
            return
        self._renewed = None
        with contextlib.suppress(AgentError):
            await self._hands.hold(seq, 0.0)

    async def pause(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait on hold; ends early when ``until`` says so (looked at every 20 s at least)."""
        deadline = self._clock.monotonic() + seconds
        while (left := deadline - self._clock.monotonic()) > 0 and not until():
            await self.renew()
            await self._clock.sleep(min(RENEW_SECONDS, left))
