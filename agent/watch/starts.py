"""How often a server was started, and why: a count that outlives watcher and launcher.

In: the launcher's own count (``starts.json`` of the run-dir, one more for each start, written before the event that
tells of it) and what is known of each start. Out: counts by reason, kept in the journal beside the launcher's count up
to which they go, in one row: no start is lost while no watcher lived, none counted twice by one that died in the
middle. Where the launcher's count can be read nothing else is counted: an event is only the occasion to look.

A run-dir that was made anew counts from 1 again; it is known by its token, of which a digest is kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from agent.model import Exit

REASONS = ("operator", "planned", "remedy", "restart")
"""Label ``reason``: all but the first two are unplanned."""

_FROM_OUTSIDE = "stopped-from-outside"
_PLANNED = "asked: restart (planned"
_COUNTS_BYTES = 1 << 16
_EXITS_BYTES = 1 << 20


class Journal(Protocol):
    """What is used of :class:`agent.journal.Journal`."""

    def kv_get(self, key: str) -> str | None:
        """The value kept under a key."""

    def kv_set(self, key: str, value: str | None) -> None:
        """Keep a value."""


class LauncherStarts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run-dir says: how many starts in all, and which run-dir it is."""

    number: int
    origin: str


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's row. ``number``: the launcher's count that is contained, None before it was ever read; ``ahead``:
    starts that were counted by their events after it, while the file could not be read.
    """

    v: int = 1
    number: int | None = None
    ahead: int = 0
    origin: str = ""
    counts: dict[str, int] = {}


class StartCounts:
    """The counts of one server. ``run_dir`` is None where nothing of it can be read (attach mode)."""

    def __init__(self, server: str, journal: Journal, run_dir: Path | None) -> None:
        self._key = f"watch/starts/{server}"
        self._journal = journal
        self._run_dir = run_dir
        self._row = _decode(journal.kv_get(self._key))

    @property
    def counts(self) -> dict[str, int]:
        """By reason, zeros too, so that the first start of a kind is seen to rise."""
        return {reason: self._row.counts.get(reason, 0) for reason in REASONS}

    def found(self, *, running: bool, restarts: int | None, overridden: bool) -> int:
        """The launcher is met: count what was started since the journal was last written; how many that were.

        ``running``: the newest start has not ended. ``restarts``: those of this launcher, so one less than its starts;
        None while it has started nothing. ``overridden``: the agent's overrides are in force now.
        """
        seen = self._read()
        if seen is None:
            reasons = ["operator"] if running and self._row == _Row() else []
        else:
            reasons = self._missed(seen, running, restarts, overridden)
        self._add(reasons, seen)
        return len(reasons)

    def began(self, reason: str) -> int:
        """A start was told of just now. How many were new: 0 where it is contained already, more where some were not
        told (those count as ``restart``).
        """
        seen = self._read()
        missed = 1 if seen is None else seen.number - self._known(seen)
        self._add([reason, *["restart"] * (missed - 1)][:missed], seen)
        return missed

    def _missed(self, seen: LauncherStarts, running: bool, restarts: int | None, overridden: bool) -> list[str]:
        """Why those that are not contained were started, from the newest back.

        An end has no record where launcher and server were killed together. Of starts before this launcher's the
        reason may so be that of a neighbour; with none left it is ``restart``, which is no better than it was.
        """
        count = seen.number - self._known(seen)
        if count == 0 or self._run_dir is None:
            return []
        exits = _exits(self._run_dir)
        # The newest start came after the last end; where it has ended too, after the one before.
        before = exits if running else exits[:-1]
        mine = 0 if restarts is None else restarts + 1
        reasons = []
        for back in range(count):
            end = before[-1 - back] if back < len(before) else None
            first = back in (mine - 1, seen.number - 1)
            reasons.append(start_reason(first=first, overridden=overridden and back == 0, before=end))
        return reasons

    def _read(self) -> LauncherStarts | None:
        return read_starts(self._run_dir) if self._run_dir is not None else None

    def _known(self, seen: LauncherStarts) -> int:
        """How many of the launcher's starts are contained."""
        row = self._row
        if row.number is None:
            # Never read before: what events told is part of it.
            return min(row.ahead, seen.number)
        if seen.origin != row.origin or seen.number < row.number:
            return 0  # another run-dir, or a count that began anew
        return min(row.number + row.ahead, seen.number)

    def _add(self, reasons: Sequence[str], seen: LauncherStarts | None) -> None:
        counts = dict(self._row.counts)
        for reason in reasons:
            counts[reason] = counts.get(reason, 0) + 1
        if seen is None:
            row = msgspec.structs.replace(self._row, ahead=self._row.ahead + len(reasons), counts=counts)
        else:
            row = _Row(number=seen.number, ahead=self._ahead(seen), origin=seen.origin, counts=counts)
        if row != self._row:
            self._row = row
            self._journal.kv_set(self._key, msgspec.json.encode(row).decode())

    def _ahead(self, seen: LauncherStarts) -> int:
        """What events told and the file does not contain yet."""
        row = self._row
        anew = row.number is not None and (seen.origin != row.origin or seen.number < row.number)
        return 0 if anew else max(0, (row.number or 0) + row.ahead - seen.number)


def start_reason(*, first: bool, overridden: bool, before: Exit | None, repairing: bool = False) -> str:
    """Why the server was started. ``first``: of its launcher; ``before``: the end before it; ``repairing``: the agent
    has an open incident, so that what it asked of the launcher is its own doing.

    An end that somebody asked for from outside the agent is followed by an operator's start, with overrides or not.
    """
    if first:
        return "operator"
    if before is not None and not repairing and (before.asked or before.reason == _FROM_OUTSIDE):
        return "planned" if before.reason.startswith(_PLANNED) else "operator"
    return "remedy" if overridden else "restart"


def read_starts(run_dir: Path) -> LauncherStarts | None:
    """The counts of a run-dir; None where it cannot be read or the launcher writes another version of them."""
    try:
        document = msgspec.json.decode(_regular(run_dir / "starts.json", _COUNTS_BYTES))
        if document["v"] != 1:
            return None
        number = msgspec.convert(document["starts"], int)
        token = _regular(run_dir / "token", _COUNTS_BYTES)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if number < 0:
        return None
    return LauncherStarts(number=number, origin=hashlib.sha256(token).hexdigest()[:16])


def _exits(run_dir: Path) -> tuple[Exit, ...]:
    """The records of ``exits.jsonl`` that can be read, oldest first."""
    try:
        lines = _regular(run_dir / "exits.jsonl", _EXITS_BYTES).splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Exit))
        except ValueError:
            continue  # cut by the bound, or half written
    return tuple(found)


def _regular(path: Path, limit: int) -> bytes:
    """The end of a regular file that is no link, since the folder's group may write there. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path} is not a regular file")
        file.seek(max(0, info.st_size - limit))
        return file.read(limit)


def _decode(text: str | None) -> _Row:
    if text is None:
        return _Row()
    try:
        row = msgspec.json.decode(text, type=_Row)
    except ValueError:
        return _Row()
    return row if row.v == 1 else _Row()
