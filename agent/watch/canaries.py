"""When an engine is asked by a canary, and what the answers have said so far.

In: which engines are idle or suspect, and how each canary ended. Out: the engine to ask next, and for each engine
since when a canary waits unanswered. At most one canary in ten seconds for a server, never two at once: it must not
be noticed among its users' requests. What cannot be asked (no key, no endpoint, a prefill or decode role) is left
alone for ten minutes and said.
"""

from __future__ import annotations

from agent.collect import CanaryOutcome, CanaryResult

SPACING_SECONDS = 10.0
IDLE_SECONDS = 15.0
REFUSED_SECONDS = 60.0
LASTING_SECONDS = 600.0


class Canaries:
    """The canaries of one server. All times are monotonic seconds."""

    def __init__(self) -> None:
        self.results: dict[str, CanaryResult] = {}
        self._sent_at: float | None = None
        self._outstanding: tuple[str, float] | None = None
        self._failed: dict[str, float] = {}
        self._not_before: dict[str, float] = {}

    def clear(self) -> None:
        """A new start: nothing of the last one counts, except the spacing."""
        self.results.clear()
        self._outstanding = None
        self._failed.clear()
        self._not_before.clear()

    def sent(self, engine: str, at: float) -> None:
        """A canary is on its way."""
        self._sent_at, self._outstanding = at, (engine, at)

    def saw(self, result: CanaryResult) -> bool:
        """A canary ended; True if it proves that the engine works."""
        self.results[result.engine] = result
        if self._outstanding is not None and self._outstanding[0] == result.engine:
            self._outstanding = None
        self._sent_at = max(result.sent_at, self._sent_at or result.sent_at)
        if result.outcome is CanaryOutcome.TIMEOUT:
            self._failed.setdefault(result.engine, result.sent_at)
        elif result.outcome is CanaryOutcome.ANSWERED or result.paused:
            self._failed.pop(result.engine, None)
        if result.outcome in (CanaryOutcome.REFUSED, CanaryOutcome.NOT_SENT):
            pause = LASTING_SECONDS if result.lasting else REFUSED_SECONDS
            self._not_before[result.engine] = result.ended_at + pause
        return result.outcome is CanaryOutcome.ANSWERED

    def settled(self, engine: str) -> None:
        """The engine moved: what it had not answered in time is explained."""
        self._failed.pop(engine, None)

    def waiting_since(self, engine: str) -> float | None:
        """When the first canary was sent that the engine has not answered."""
        if engine in self._failed:
            return self._failed[engine]
        return self._outstanding[1] if self._outstanding is not None and self._outstanding[0] == engine else None

    def due(self, engine: str, now: float, every: float = SPACING_SECONDS) -> bool:
        """Whether ``engine`` may be asked now; at most one canary of the server in ``every`` seconds."""
        if self._outstanding is not None or now < self._not_before.get(engine, now):
            return False
        return self._sent_at is None or now - self._sent_at >= every
