"""The server's cards as one document, and the count of their Xids; the same for the launcher and for a lone watcher.

In: a way to start the driver's process (:mod:`agent.launch.driverlink`). Out: ``{backend, driver, cards, costly,
age_seconds, trouble, note, xid_reason, xids}``; without a reading ``cards`` is empty and ``trouble`` says why. Never
blocks, never raises for what a driver does.

Xids are counted here and not where they are published, so that a watcher that starts again neither loses one nor
counts it twice: it reads totals. They begin anew with the owner of this object, as every process' counters do.
"""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from agent.launch.driverlink import DriverLink, Start

RECENT = 64
KINDS_KEPT = 1000
Document = dict[str, object]
NOT_SERVERS = frozenset({"AGENT_LAUNCH_ID", "VLLM_AGENT_RUN_DIR"})
"""What marks a process as the server's own; the driver's process is none of them."""


class Xids:
    """Totals by card and number, and the last ones with their times."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, int], tuple[int, float]] = {}
        self._recent: deque[Document] = deque(maxlen=RECENT)

    def add(self, xid: Mapping[str, object]) -> Document | None:
        """Count one; it as it is kept, or None where it is no Xid."""
        gpu, uuid, number, at = xid.get("gpu"), xid.get("uuid"), xid.get("xid"), xid.get("at")
        whole = isinstance(gpu, int) and isinstance(uuid, str) and isinstance(number, int)
        if not whole or not isinstance(at, (int, float)):
            return None
        assert isinstance(gpu, int) and isinstance(uuid, str) and isinstance(number, int)
        key = gpu, uuid, number
        if key not in self._counts and len(self._counts) >= KINDS_KEPT:
            return None
        self._counts[key] = self._counts.get(key, (0, 0.0))[0] + 1, float(at)
        kept: Document = {"gpu": gpu, "uuid": uuid, "xid": number, "at": float(at)}
        self._recent.append(kept)
        return kept

    def to_json(self) -> Document:
        counts = [
            {"gpu": gpu, "uuid": uuid, "xid": number, "count": count, "last": last}
            for (gpu, uuid, number), (count, last) in self._counts.items()
        ]
        return {"counts": counts, "recent": list(self._recent)}


class Cards:
    """One driver process and its account."""

    def __init__(
        self,
        start: Start,
        pythons: Callable[[], Sequence[str]],
        env: Callable[[], Mapping[str, str]],
        on_xid: Callable[[Document], None] | None = None,
    ) -> None:
        self._xids = Xids()
        self._on_xid = on_xid
        self._link = DriverLink(start, pythons, lambda: _own(env()), self._xid)

    @property
    def pid(self) -> int | None:
        """The driver's process, where one runs."""
        return self._link.pid

    async def read(self, *, costly: bool, own: Sequence[int] | None) -> Document:
        """One look at every own card, at most 1.5 s. ``own``: pids of the server where they are known."""
        return self._document(await self._link.read(costly=costly, own=own))

    def idle(self) -> Document:
        """The account without asking the driver: the Xids that came."""
        return self._document({})

    def _document(self, answer: Mapping[str, object]) -> Document:
        found = answer.get("trouble")
        problem = {"kind": found.get("kind"), "reason": found.get("reason")} if isinstance(found, dict) else None
        names = ("backend", "driver", "note", "xid_reason", "age_seconds")
        return {
            **{name: answer.get(name) for name in names}, "costly": bool(answer.get("costly")),
            "cards": answer.get("cards") or [], "measured": "cards" in answer, "trouble": problem,
            "xids": self._xids.to_json(),
        }  # fmt: skip

    async def costs(self, repeat: int, limit: float) -> Document:
        """Milliseconds of each field's call."""
        return await self._link.costs(repeat, limit)

    def close(self) -> None:
        """End the driver's process."""
        self._link.close()

    def _xid(self, xid: Mapping[str, object]) -> None:
        kept = self._xids.add(xid)
        if kept is not None and self._on_xid is not None:
            self._on_xid(kept)


def _own(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in NOT_SERVERS}


def start_here(argv: Sequence[str], env: Mapping[str, str], reader: int, writer: int) -> subprocess.Popen[bytes]:
    """Start the driver's process in a session of its own, for an owner that reaps its children itself."""
    return subprocess.Popen(
        list(argv), env=dict(env), stdin=reader, stdout=writer, stderr=subprocess.DEVNULL, start_new_session=True
    )
