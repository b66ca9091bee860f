"""Whether an engine is at its limits for a while: requests wait, the KV cache is full, or requests are refused.

In: the samples of one engine. Out: the reason, once it has lasted ten seconds; it is over once ten seconds have passed
without it, so a queue that empties for a moment changes nothing.
"""

from __future__ import annotations

from agent.watch.progress import EngineSample

LAST_SECONDS = 10.0
FULL = 0.95


class Pressure:
    """One engine's pressure. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seen: float = 0.0
        self._reason = ""
        self._rejections: float | None = None
        self._at = 0.0

    def saw(self, sample: EngineSample) -> None:
        """One scrape."""
        reason = self._look(sample)
        self._rejections, self._at = sample.rejections, sample.at
        if reason is not None:
            self._since = sample.at if self._since is None else self._since
            self._seen, self._reason = sample.at, reason
        elif self._since is not None and sample.at - self._seen >= LAST_SECONDS:
            self._since = None

    def _look(self, sample: EngineSample) -> str | None:
        if sample.rejections is not None and sample.rejections > (self._rejections or sample.rejections):
            return "requests are refused at the queue limit"
        if sample.kv_usage is not None and sample.kv_usage > FULL:
            return f"the KV cache is {sample.kv_usage:.0%} full"
        return f"{sample.held_back:.0f} requests wait for capacity" if sample.held_back > 0 else None

    @property
    def reason(self) -> str | None:
        """Why it is saturated, None while it is not."""
        return self._reason if self._since is not None and self._at - self._since >= LAST_SECONDS else None
