"""The tables of the journal and how an older file becomes a newer one.

In: a connection. Out: the same with ``PRAGMA user_version`` = :data:`SCHEMA_VERSION`, all steps in one
transaction. A file of a newer agent is refused: reading half of what it means would repeat actions.
"""

from __future__ import annotations

import sqlite3

from agent.errors import JournalError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE incidents (
            id TEXT PRIMARY KEY, server TEXT NOT NULL, fault TEXT NOT NULL, state TEXT NOT NULL,
            closed INTEGER NOT NULL, opened_at TEXT NOT NULL, document BLOB NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX incidents_closed ON incidents (closed, id)",
        """CREATE TABLE actions (
            id TEXT PRIMARY KEY, incident TEXT NOT NULL, server TEXT NOT NULL, fault TEXT NOT NULL,
            action TEXT NOT NULL, state TEXT NOT NULL, created_at TEXT NOT NULL, document BLOB NOT NULL)
            WITHOUT ROWID""",
        "CREATE INDEX actions_budget ON actions (server, fault, created_at)",
        "CREATE INDEX actions_incident ON actions (incident)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, server TEXT,
            data BLOB NOT NULL)""",
        "CREATE INDEX events_at ON events (at)",
        "CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE claims (key TEXT PRIMARY KEY, at TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            notifier TEXT NOT NULL, key TEXT NOT NULL, topic TEXT NOT NULL,
            payload BLOB NOT NULL, state TEXT NOT NULL, created_at TEXT NOT NULL, attempts INTEGER NOT NULL,
            next_at TEXT NOT NULL, error TEXT, UNIQUE (notifier, key))""",
        "CREATE INDEX outbox_state ON outbox (notifier, state, id)",
        """CREATE TABLE refs (
            notifier TEXT NOT NULL, topic TEXT NOT NULL, ref TEXT NOT NULL, at TEXT NOT NULL,
            PRIMARY KEY (notifier, topic)) WITHOUT ROWID""",
    ),
)

SCHEMA_VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, where: str, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> int:
    """Bring the file to the newest version and return the version it had. Raises JournalError: newer."""
    had = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if had > len(migrations):
        raise JournalError(
            f"the journal has version {had}, this agent knows up to {len(migrations)}",
            where=where,
            remedy="use the newer agent again, or another --state-dir",
        )
    if had == len(migrations):
        return had
    connection.execute("BEGIN IMMEDIATE")
    try:
        for steps in migrations[had:]:
            for step in steps:
                connection.execute(step)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return had
