"""The journal's verbs, one short synchronous call each.

In: the model's structs, stored as JSON beside the few columns that are searched. Out: the same structs. A
write is a transaction of its own (WAL, synchronous=NORMAL: about 0.1 ms). An action is kept twice on
purpose: in its incident, which people read, and in a table of its own, which the budget counts.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from agent.errors import JournalError
from agent.journal.lock import StateLock
from agent.journal.outbox import Outbox
from agent.journal.records import EXPORT_VERSION, Event, ExportLine
from agent.journal.store import Store, snapshot
from agent.model import Action, Clock, Incident, IncidentState, SystemClock, rfc3339

FILE_NAME = "journal.db"

_INCIDENT = msgspec.json.Decoder(Incident)
_ACTION = msgspec.json.Decoder(Action)
_DATA = msgspec.json.Decoder(dict[str, object])


class Journal:
    """The journal of one state folder. ``outbox`` holds what people still have to be told."""

    def __init__(self, store: Store, clock: Clock, lock: StateLock | None, state_dir: Path) -> None:
        self._store = store
        self._clock = clock
        self._lock = lock
        self.state_dir = state_dir
        self.outbox = Outbox(store, clock)

    @classmethod
    def open(cls, state_dir: Path, clock: Clock | None = None) -> Journal:
        """Open for the one watcher of this folder.

        Raises JournalError: folder not writable, in use by another watcher, journal of a newer agent.
        """
        clock = clock or SystemClock()
        lock = StateLock(state_dir)
        try:
            store = Store(state_dir / FILE_NAME, clock)
        except BaseException:
            lock.release()
            raise
        journal = cls(store, clock, lock, state_dir)
        for notice in store.notices:
            journal.append_event("journal-replaced", None, {"notice": notice})
        return journal

    @classmethod
    def read(cls, state_dir: Path, clock: Clock | None = None) -> Journal:
        """A copy of the journal as it stands, beside a running watcher; writes to it go nowhere."""
        clock = clock or SystemClock()
        memory = snapshot(state_dir / FILE_NAME)
        return cls(_Snapshot(memory, state_dir / FILE_NAME, clock), clock, None, state_dir)

    def close(self) -> None:
        """Write back what is held and let the next watcher in."""
        self._store.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def healthy(self) -> bool:
        """Whether everything written so far is on the disk."""
        return self._store.healthy

    @property
    def last_error(self) -> str | None:
        """Why it is not healthy."""
        return self._store.last_error

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know, for example that a broken file was set aside."""
        return tuple(self._store.notices)

    def retry(self) -> bool:
        """Try to write to the disk again, at most every five seconds; call it from a slow loop."""
        return self._store.retry()

    # incidents and actions

    def save_incident(self, incident: Incident) -> None:
        """Insert or replace an incident and its actions."""

        def work(db: sqlite3.Connection) -> None:
            _put_incident(db, incident)
            for action in incident.actions:
                _put_action(db, action, incident)

        self._store.write(work)

    def incident(self, incident_id: str) -> Incident | None:
        """The incident of that id."""
        row = self._store.read(
            lambda db: db.execute("SELECT document FROM incidents WHERE id = ?", (incident_id,)).fetchone()
        )
        return None if row is None else _INCIDENT.decode(row[0])

    def incidents(self, state: IncidentState | None = None, limit: int = 100) -> tuple[Incident, ...]:
        """Newest first."""
        where, arguments = ("WHERE state = ?", (state.value,)) if state is not None else ("", ())
        query = f"SELECT document FROM incidents {where} ORDER BY opened_at DESC, id DESC LIMIT ?"
        return self._incidents(query, (*arguments, limit))

    def open_incidents(self) -> tuple[Incident, ...]:
        """Every incident that is neither resolved nor unresolved, oldest first."""
        return self._incidents("SELECT document FROM incidents WHERE closed = 0 ORDER BY opened_at, id", ())

    def save_action(self, action: Action) -> None:
        """Insert or replace an action, also inside its incident.

        Raises JournalError when that incident is not in the journal.
        """

        def work(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT document FROM incidents WHERE id = ?", (action.incident,)).fetchone()
            if row is None:
                raise JournalError(
                    f"action {action.id} names incident {action.incident}, which is not in the journal",
                    remedy="save the incident first",
                )
            incident = _with_action(_INCIDENT.decode(row[0]), action)
            _put_incident(db, incident)
            _put_action(db, action, incident)

        self._store.write(work)

    def action(self, action_id: str) -> Action | None:
        """The action of that id."""
        row = self._store.read(
            lambda db: db.execute("SELECT document FROM actions WHERE id = ?", (action_id,)).fetchone()
        )
        return None if row is None else _ACTION.decode(row[0])

    def actions_since(self, server: str, fault: str, since: datetime) -> tuple[Action, ...]:
        """Actions for one fault of one server created at or after ``since``, oldest first (for budgets)."""
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT document FROM actions WHERE server = ? AND fault = ? AND created_at >= ?"
                " ORDER BY created_at, id",
                (server, fault, rfc3339(since)),
            ).fetchall()
        )
        return tuple(_ACTION.decode(row[0]) for row in rows)

    # events

    def append_event(self, kind: str, server: str | None, data: dict[str, object]) -> int:
        """Append one event; returns its number."""
        row = (rfc3339(self._clock.now()), kind, server, msgspec.json.encode(data))

        def work(db: sqlite3.Connection) -> int:
            cursor = db.execute("INSERT INTO events (at, kind, server, data) VALUES (?, ?, ?, ?)", row)
            return int(cursor.lastrowid or 0)

        return self._store.write(work)

    def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Events with a number above ``after``, oldest first."""
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT seq, at, kind, server, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?",
                (after, limit),
            ).fetchall()
        )
        return tuple(
            Event(seq=seq, at=at, kind=kind, server=server, data=_DATA.decode(data))
            for seq, at, kind, server, data in rows
        )

    # small state

    def kv_get(self, key: str) -> str | None:
        """The value kept under a key (breaker, stream offsets, last exit seen)."""
        row = self._store.read(lambda db: db.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone())
        return None if row is None else str(row[0])

    def kv_set(self, key: str, value: str | None) -> None:
        """Keep a value; None forgets it."""
        if value is None:
            self._store.write(lambda db: db.execute("DELETE FROM kv WHERE key = ?", (key,)))
            return
        self._store.write(lambda db: db.execute("INSERT OR REPLACE INTO kv (key, value) VALUES (?, ?)", (key, value)))

    def kv_keys(self, prefix: str = "") -> tuple[str, ...]:
        """The keys that begin with ``prefix``, sorted."""
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT key FROM kv WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix)
            ).fetchall()
        )
        return tuple(str(row[0]) for row in rows)

    def claim(self, key: str) -> bool:
        """True for the first caller ever, also across restarts; False for all others."""
        row = (key, rfc3339(self._clock.now()))
        return self._store.write(
            lambda db: db.execute("INSERT OR IGNORE INTO claims (key, at) VALUES (?, ?)", row).rowcount == 1
        )

    # upkeep

    def prune(self, before: datetime) -> int:
        """Drop closed incidents, events and messages older than ``before``; returns how many rows.

        Claims and small state stay: dropping a claim could repeat an action.
        """
        limit = rfc3339(before)

        def work(db: sqlite3.Connection) -> int:
            old = "SELECT id FROM incidents WHERE closed = 1 AND opened_at < ?"
            statements = (
                f"DELETE FROM actions WHERE incident IN ({old})",
                "DELETE FROM incidents WHERE closed = 1 AND opened_at < ?",
                "DELETE FROM events WHERE at < ?",
                "DELETE FROM outbox WHERE created_at < ?",
                "DELETE FROM refs WHERE at < ?",
            )
            return sum(db.execute(statement, (limit,)).rowcount for statement in statements)

        return self._store.write(work)

    def export(self) -> Iterator[bytes]:
        """JSON lines (``agent schema journal-export``): every incident, then every event."""
        encoder = msgspec.json.Encoder()
        query = "SELECT document FROM incidents ORDER BY opened_at, id"
        for incident in self._incidents(query, ()):
            yield encoder.encode(ExportLine(schema_version=EXPORT_VERSION, incident=incident))
        after = 0
        while batch := self.events(after):
            for event in batch:
                yield encoder.encode(ExportLine(schema_version=EXPORT_VERSION, event=event))
            after = batch[-1].seq

    def _incidents(self, query: str, arguments: tuple[object, ...]) -> tuple[Incident, ...]:
        rows = self._store.read(lambda db: db.execute(query, arguments).fetchall())
        return tuple(_INCIDENT.decode(row[0]) for row in rows)


class _Snapshot(Store):
    """A store that is a copy in memory only."""

    def __init__(self, memory: sqlite3.Connection, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._disk = memory
        self._memory = None
        self._held = deque(maxlen=0)
        self._identity = None
        self._retry_at = 0.0
        self.last_error = None
        self.notices = []


def _put_incident(db: sqlite3.Connection, incident: Incident) -> None:
    db.execute(
        "INSERT OR REPLACE INTO incidents (id, server, fault, state, closed, opened_at, document)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            incident.id,
            incident.server,
            incident.fault,
            incident.state.value,
            int(incident.state.closed),
            incident.opened_at,
            msgspec.json.encode(incident),
        ),
    )


def _put_action(db: sqlite3.Connection, action: Action, incident: Incident) -> None:
    db.execute(
        "INSERT OR REPLACE INTO actions (id, incident, server, fault, action, state, created_at, document)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            action.id,
            incident.id,
            incident.server,
            incident.fault,
            action.action,
            action.state.value,
            action.created_at,
            msgspec.json.encode(action),
        ),
    )


def _with_action(incident: Incident, action: Action) -> Incident:
    others = list(incident.actions)
    for index, one in enumerate(others):
        if one.id == action.id:
            others[index] = action
            break
    else:
        others.append(action)
    return msgspec.structs.replace(incident, actions=tuple(others))
