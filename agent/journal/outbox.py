"""Messages that are owed, on the disk until the receiver has them.

In: a notifier's name, a key that makes the message unique for ever, a topic and a payload. Out: what is
due, oldest first, one topic in order. ``supersede`` lets a newer state of a topic replace older messages
that were never sent, so that a receiver that was down for an hour gets the newest state and not the whole
film. Delivery is at least once: only a crash between the receiver's answer and :meth:`Outbox.mark_sent`
can repeat a message.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

from agent.journal.records import Delivery
from agent.journal.store import Store
from agent.model import Clock, rfc3339

_COLUMNS = (
    "o.id, o.notifier, o.key, o.topic, o.payload, o.created_at, o.attempts, o.next_at, r.ref, o.error"
    " FROM outbox o LEFT JOIN refs r ON r.notifier = o.notifier AND r.topic = o.topic"
)


class Outbox:
    """The queue of all notifiers."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def enqueue(
        self,
        notifier: str,
        key: str,
        topic: str,
        payload: bytes,
        *,
        supersede: bool = True,
        delay_seconds: float = 0.0,
    ) -> bool:
        """Queue a message once, due after ``delay_seconds``.

        False when this key was queued before, whatever became of it; while it is unsent it takes the new payload.
        """
        now = self._clock.now()
        created, due = rfc3339(now), rfc3339(now + timedelta(seconds=delay_seconds))

        def work(db: sqlite3.Connection) -> bool:
            added = db.execute(
                "INSERT OR IGNORE INTO outbox"
                " (notifier, key, topic, payload, state, created_at, attempts, next_at)"
                " VALUES (?, ?, ?, ?, 'pending', ?, 0, ?)",
                (notifier, key, topic, payload, created, due),
            )
            if added.rowcount != 1:
                db.execute(
                    "UPDATE outbox SET payload = ? WHERE notifier = ? AND key = ? AND state = 'pending'",
                    (payload, notifier, key),
                )
                return False
            if supersede:
                db.execute(
                    "UPDATE outbox SET state = 'superseded' WHERE notifier = ? AND topic = ? AND id < ?"
                    " AND state IN ('pending', 'parked')",
                    (notifier, topic, added.lastrowid),
                )
            return True

        return self._store.write(work)

    def pending(self, notifier: str | None = None, limit: int = 100) -> tuple[Delivery, ...]:
        """Unsent messages, oldest first, whether or not they are due (see ``next_at``)."""
        where, arguments = ("AND o.notifier = ?", (notifier,)) if notifier is not None else ("", ())
        query = f"SELECT {_COLUMNS} WHERE o.state = 'pending' {where} ORDER BY o.id LIMIT ?"
        rows = self._store.read(lambda db: db.execute(query, (*arguments, limit)).fetchall())
        return tuple(Delivery(**dict(zip(Delivery.__struct_fields__, row, strict=True))) for row in rows)

    def count(self, notifier: str, state: str = "pending") -> int:
        """How many messages are in a state: pending, sent, parked, superseded."""
        query = "SELECT count(*) FROM outbox WHERE notifier = ? AND state = ?"
        return int(self._store.read(lambda db: db.execute(query, (notifier, state)).fetchone())[0])

    def mark_sent(self, delivery: Delivery, ref: str | None) -> None:
        """The receiver has it; ``ref`` is kept for later edits of the topic."""
        now = rfc3339(self._clock.now())

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE outbox SET state = 'sent', error = NULL, attempts = attempts + 1"
                " WHERE notifier = ? AND key = ?",
                (
                    delivery.notifier,
                    delivery.key,
                ),
            )
            if ref is not None:
                db.execute(
                    "INSERT OR REPLACE INTO refs (notifier, topic, ref, at) VALUES (?, ?, ?, ?)",
                    (delivery.notifier, delivery.topic, ref, now),
                )

        self._store.write(work)

    def mark_failed(self, delivery: Delivery, error: str, next_at: datetime) -> None:
        """It is tried again at ``next_at``."""
        self._store.write(
            lambda db: db.execute(
                "UPDATE outbox SET error = ?, attempts = attempts + 1, next_at = ? WHERE notifier = ? AND key = ?",
                (error, rfc3339(next_at), delivery.notifier, delivery.key),
            )
        )

    def park(self, delivery: Delivery, error: str) -> None:
        """The receiver refuses it for good; it waits for :meth:`unpark`."""
        self._store.write(
            lambda db: db.execute(
                "UPDATE outbox SET state = 'parked', error = ?, attempts = attempts + 1"
                " WHERE notifier = ? AND key = ? AND state = 'pending'",
                (error, delivery.notifier, delivery.key),
            )
        )

    def unpark(self, notifier: str) -> int:
        """Try everything parked once more, for example after a new token; returns how many."""
        now = rfc3339(self._clock.now())
        return self._store.write(
            lambda db: (
                db.execute(
                    "UPDATE outbox SET state = 'pending', next_at = ? WHERE notifier = ? AND state = 'parked'",
                    (now, notifier),
                ).rowcount
            )
        )
