"""The launcher's events: numbered, kept for late readers, pushed to those who listen.

In: a kind and its fields. Out: a list from a number on, and a bell. Numbers go on across launchers, so a
watcher that reconnects asks for what it has not seen. Never more than 1,000 are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from agent.launch.bell import Bell
from agent.launch.clock import Clock, rfc3339

KEPT = 1000


class Events:
    """The list and its bell."""

    def __init__(self, clock: Clock, last_seq: int, persist: Callable[[int], None]) -> None:
        self._clock = clock
        self._persist = persist
        self._kept: deque[dict[str, object]] = deque(maxlen=KEPT)
        self.seq = last_seq
        self.changed = Bell()

    def add(self, kind: str, **fields: object) -> None:
        """Record one event and wake the streams."""
        self.seq += 1
        now = self._clock.wall()
        head = {"seq": self.seq, "at": rfc3339(now), "at_monotonic": self._clock.monotonic(), "kind": kind}
        self._kept.append({**head, **fields})
        self.changed.ring()
        self._persist(self.seq)

    def since(self, after: int) -> list[dict[str, object]]:
        """Events numbered above ``after`` that are still kept; all of them if ``after`` is from a
        longer count.
        """
        if after > self.seq:
            after = 0
        return [event for event in self._kept if int(str(event["seq"])) > after]
