"""The closer looks at a server that is quiet: its processes, a pause, one canary.

In: what the evidence wants to know now. Out: observations, fed back into it. The round of the scrape is never kept
waiting by a canary, which may take half a minute; at most one is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from agent.collect import Canary, CanaryResult, VllmClient
from agent.model import Clock
from agent.watch.canaries import SPACING_SECONDS
from agent.watch.evidence import ServerEvidence
from agent.watch.tasks import OneTask, within

LOOK_SECONDS = 2.0
# What waits longer, behind a long prefill for instance, is let go and asked again.
TIMEOUT_SECONDS = 10.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Whether canaries are sent, the least time between two, and how long an answer may take (seconds)."""

    enabled: bool = True
    every_seconds: float = SPACING_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS


class Lookout:
    """One server's. ``look`` reads its processes into the evidence; ``counted`` hears how each canary ended."""

    def __init__(
        self,
        evidence: ServerEvidence,
        look: Callable[[], Awaitable[None]],
        clock: Clock,
        pace: Callable[[], Pace],
        counted: Callable[[CanaryResult], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._evidence = evidence
        self._look = look
        self._clock = clock
        self._pace = pace
        self._counted = counted
        self._task = OneTask(failed)
        self._canary: Canary | None = None
        self._made_for: tuple[VllmClient, int] | None = None

    async def round(self) -> None:
        """After each scrape."""
        evidence, client = self._evidence, self._evidence.client
        if client is None:
            return
        canary = self._canary_of(client)
        if evidence.wants_look(self._clock.monotonic()):
            await within(LOOK_SECONDS, self._closer(canary))
        now = self._clock.monotonic()
        pace = self._pace()
        engine = evidence.wants_canary(now, pace.every_seconds) if pace.enabled else None
        if engine is not None and not self._task.running:
            evidence.canary_sent(engine, now)
            self._task.start(lambda: self._ask(canary, engine, pace.timeout_seconds))

    async def stop(self) -> None:
        """End a canary that is under way."""
        await self._task.stop()

    def _canary_of(self, client: VllmClient) -> Canary:
        """A new start may serve another model or task."""
        key = (client, self._evidence.start_seq())
        if self._canary is None or self._made_for != key:
            self._canary, self._made_for = Canary(client, self._clock), key
        return self._canary

    async def _closer(self, canary: Canary) -> None:
        _, paused = await asyncio.gather(self._look(), canary.paused())
        self._evidence.saw_paused(paused)

    async def _ask(self, canary: Canary, engine: str, timeout: float) -> None:
        start = self._evidence.start_seq()
        result = await canary.ask(engine, several=len(self._evidence.engines) > 1, timeout=timeout)
        self._counted(result)
        if start == self._evidence.start_seq():
            self._evidence.saw_canary(result)
