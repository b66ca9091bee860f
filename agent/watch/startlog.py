"""The log of the present start, between the stream and the diagnosis.

In: chunks with stream offsets. Out: anchors as they complete, the session that can conclude, and a way to wait
until the stream has reached the offset that an exit record names. One session is one start of the server; a new
one begins when the watcher says so, at an offset, so that no line of the next start explains the last death.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.diagnose import Catalogue, LogSession, Signal

KEPT_SIGNALS = 256


class StartLog:
    """Feeds one :class:`LogSession` per start; ``on_signal`` is called for each anchor as it completes."""

    def __init__(self, catalogue: Catalogue, source: str, on_signal: Callable[[Signal], None]) -> None:
        self._catalogue = catalogue
        self._source = source
        self._on_signal = on_signal
        self._reached = asyncio.Event()
        self._wanted = 0
        self.offset = 0
        self.total_bytes = 0
        self.dropped_bytes = 0
        self.signals: list[Signal] = []
        self.session = LogSession(catalogue, source=source)

    def feed(self, data: bytes, *, offset: int | None = None, dropped: int = 0) -> None:
        """Take one chunk. ``offset`` is where it begins in the stream, ``dropped`` how many bytes were lost before."""
        self.offset = (offset if offset is not None else self.offset) + len(data)
        self.total_bytes += len(data)
        self.dropped_bytes += dropped
        self._keep(self.session.feed(data))
        if self.offset >= self._wanted:
            self._reached.set()

    def begin(self) -> None:
        """A new start: what comes from now on belongs to it."""
        self.session = LogSession(self._catalogue, source=self._source)
        self.signals = []

    async def reach(self, offset: int, seconds: float) -> bool:
        """Wait until everything before ``offset`` was fed; False when ``seconds`` passed first."""
        if self.offset >= offset:
            return True
        self._wanted = offset
        self._reached.clear()
        try:
            await asyncio.wait_for(self._reached.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def finish(self) -> None:
        """No more will come for this start: judge a half line too."""
        self._keep(self.session.finish())

    def saw(self, fault: str) -> bool:
        """Whether an anchor of ``fault`` stands in the present start."""
        return any(signal.fault == fault for signal in self.signals)

    def _keep(self, signals: tuple[Signal, ...]) -> None:
        for signal in signals:
            if len(self.signals) < KEPT_SIGNALS:
                self.signals.append(signal)
            self._on_signal(signal)
