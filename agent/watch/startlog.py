"""The log of one server, cut into its starts, between the stream and the diagnosis.

In: chunks with their stream offsets, each naming the start that wrote it; the news that a start began. Out: anchors
of the present start as they complete, the session that can conclude, and a way to wait until the stream has reached
the offset that an exit record names.

News and bytes come over two streams and may overtake each other, so neither waits for the other: a chunk goes to the
start that it names, and what is present is said by the news alone. A line of the next start can therefore never
explain the last death, and no first line of a start is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.diagnose import Catalogue, LogSession, Signal
from agent.watch.tasks import within

KEPT_SIGNALS = 256
KEPT_STARTS = 3


class StartPart:
    """One start's share of the log. ``begins`` is its first offset, None where that is not known."""

    def __init__(self, catalogue: Catalogue, source: str, begins: int | None) -> None:
        self.begins = begins
        self.session = LogSession(catalogue, source=source)
        self.signals: list[Signal] = []
        self.untold: list[Signal] = []
        self.touched = False

    def feed(self, data: bytes) -> tuple[Signal, ...]:
        """The signals of the lines that ``data`` completes."""
        self.touched = True
        return self._keep(self.session.feed(data))

    def finish(self) -> tuple[Signal, ...]:
        """No more will come: judge a half line too."""
        return self._keep(self.session.finish())

    def _keep(self, signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
        self.signals += signals[: KEPT_SIGNALS - len(self.signals)]
        return signals


class StartLog:
    """``on_signal`` is called for each anchor of the present start as it completes."""

    def __init__(self, catalogue: Catalogue, source: str, on_signal: Callable[[Signal], None]) -> None:
        self._catalogue = catalogue
        self._source = source
        self._on_signal = on_signal
        self._moved = asyncio.Event()
        self.offset = 0
        self.present = self._part(None)
        self._parts = [self.present]

    @property
    def session(self) -> LogSession:
        """The present start's."""
        return self.present.session

    @property
    def signals(self) -> list[Signal]:
        """The present start's anchors, the oldest ones."""
        return self.present.signals

    def feed(
        self,
        data: bytes,
        *,
        offset: int | None = None,
        dropped: int = 0,
        start: int | None = None,
        history: bool = False,
    ) -> None:
        """Take one chunk.

        ``offset``: where it begins in the stream. ``dropped``: bytes lost right before it, so that a half line held
        from before is no beginning of its first one. ``start``: where the start that wrote it begins; None = the newest
        known. ``history``: written before anybody watched, so it is evidence but no news.
        """
        part = self._of(start)
        signals = (*(part.finish() if dropped else ()), *part.feed(data))
        self.offset = (offset if offset is not None else self.offset) + len(data)
        self._wake()
        if history:
            return
        if part is self.present:
            self._tell(signals)
        elif part is self._parts[-1]:
            part.untold += signals[: KEPT_SIGNALS - len(part.untold)]

    def begin(self, at: int | None = None) -> None:
        """A new start, whose first byte stands at ``at``; None where that is not known: what comes now is its own."""
        part = next((one for one in self._parts if one.begins == at), None) if at is not None else None
        self.present = part or self._append(at)
        untold, self.present.untold = self.present.untold, []
        self._tell(tuple(untold))

    async def reach(self, offset: int, seconds: float) -> bool:
        """Wait until everything before ``offset`` was fed; False when ``seconds`` passed first."""
        return await within(seconds, self._until(offset))

    def finish(self, part: StartPart) -> None:
        """``part`` has ended: judge its last half line too."""
        signals = part.finish()
        if part is self.present:
            self._tell(signals)

    def saw(self, fault: str) -> bool:
        """Whether an anchor of ``fault`` stands in the present start."""
        return any(signal.fault == fault for signal in self.signals)

    async def _until(self, offset: int) -> None:
        while self.offset < offset:
            await self._moved.wait()

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _of(self, start: int | None) -> StartPart:
        newest = self._parts[-1]
        if start is None or start == newest.begins:
            return newest
        if newest.begins is None and not newest.touched:
            newest.begins = start
            return newest
        known = next((one for one in self._parts if one.begins == start), None)
        return known or self._append(start)

    def _append(self, begins: int | None) -> StartPart:
        part = self._part(begins)
        self._parts = [*self._parts[1 - KEPT_STARTS :], part]
        return part

    def _part(self, begins: int | None) -> StartPart:
        return StartPart(self._catalogue, self._source, begins)

    def _tell(self, signals: tuple[Signal, ...]) -> None:
        for signal in signals:
            self._on_signal(signal)
