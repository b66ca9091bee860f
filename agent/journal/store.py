"""A SQLite file that survives its disk.

In: small functions that read or write through a connection. Out: their results, always. While the file
cannot be written (disk full, read-only, I/O error) the store works on a copy in memory and writes the
whole copy back when the disk allows it, tried at most every :data:`RETRY_SECONDS`; the copy is bounded by
what the file held plus :data:`MAX_HELD_WRITES` writes, beyond which the oldest events of the copy are
dropped. A file that is no longer a database is renamed ``.corrupt-<time>`` and a new one is begun from
what is known. It never raises for the disk's sake after it was opened; ``healthy`` and ``last_error`` say
how it stands.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agent.errors import JournalError
from agent.journal.schema import migrate
from agent.model import Clock

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

RETRY_SECONDS = 5.0
MAX_HELD_WRITES = 20_000
_BUSY_SECONDS = 0.25
_CORRUPT = ("malformed", "not a database", "file is encrypted")


class Store:
    """One database; synchronous, one thread. See the module's text for what it promises."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises JournalError only for a file of a newer version."""
        self._path = path
        self._clock = clock
        self._retry_at = 0.0
        self._held = 0
        self.last_error: str | None = None
        self.notices: list[str] = []
        self._disk: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        try:
            self._disk = self._open()
        except sqlite3.DatabaseError as error:
            self._survive(error)

    @property
    def healthy(self) -> bool:
        """Whether what was written last is on the disk."""
        return self._memory is None

    def read(self, work: Work[T]) -> T:
        """Run a read."""
        try:
            return work(self._connection)
        except sqlite3.DatabaseError as error:
            if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
                raise
            self._survive(error)
            return work(self._connection)

    def write(self, work: Work[T]) -> T:
        """Run a write in a transaction of its own."""
        self.retry()
        try:
            result = _transaction(self._connection, work)
        except sqlite3.DatabaseError as error:
            if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
                raise
            self._survive(error)
            result = _transaction(self._connection, work)
        if self._memory is not None:
            self._bound()
        return result

    def retry(self) -> bool:
        """Write the copy back where it is time to try; True when the file is up to date."""
        memory = self._memory
        if memory is None:
            return True
        if self._clock.monotonic() < self._retry_at:
            return False
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        try:
            disk = self._disk or self._connect()
            self._disk = disk
            memory.backup(disk)
            disk.execute("PRAGMA journal_mode = WAL")
        except sqlite3.DatabaseError as error:
            self.last_error = f"{self._path}: {error}"
            self._drop_disk()
            if _is_corrupt(error):
                self._set_aside()
            return False
        memory.close()
        self._memory, self.last_error, self._held = None, None, 0
        return True

    def close(self) -> None:
        """Write back what is held, as far as the disk allows, and let go."""
        self._retry_at = 0.0
        self.retry()
        for connection in (self._disk, self._memory):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._disk = self._memory = None

    @property
    def _connection(self) -> sqlite3.Connection:
        connection = self._memory or self._disk
        if connection is None:
            raise JournalError("the journal is closed", where=str(self._path))
        return connection

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    def _open(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _check(connection)
            migrate(connection, str(self._path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _survive(self, error: sqlite3.DatabaseError) -> None:
        """After a failure of the disk: go on in memory; a broken file is set aside and begun anew."""
        self.last_error = f"{self._path}: {error}"
        if self._memory is None:
            self._memory = self._copy()
            self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        if _is_corrupt(error):
            self._drop_disk()
            self._set_aside()
            self._retry_at = 0.0
            self.retry()

    def _copy(self) -> sqlite3.Connection:
        """What the file holds, else an empty journal: a copy of broken pages would break again."""
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            if self._disk is not None:
                self._disk.backup(memory)
            _check(memory)
            migrate(memory, str(self._path))
        except sqlite3.DatabaseError:
            memory.close()
            memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            migrate(memory, str(self._path))
        return memory

    def _drop_disk(self) -> None:
        if self._disk is not None:
            with contextlib.suppress(sqlite3.Error):
                self._disk.close()
        self._disk = None

    def _set_aside(self) -> None:
        stamp = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
        aside = self._path.with_name(f"{self._path.name}.corrupt-{stamp}")
        try:
            self._path.rename(aside)
        except OSError as error:
            self.last_error = f"{self._path}: broken, and cannot be renamed: {error.strerror}"
            return
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                self._path.with_name(self._path.name + suffix).rename(aside.with_name(aside.name + suffix))
        self.notices.append(f"the journal was broken; it is kept as {aside} and a new one was begun")

    def _bound(self) -> None:
        self._held += 1
        if self._memory is not None and self._held > MAX_HELD_WRITES:
            self._memory.execute(
                "DELETE FROM events WHERE seq IN (SELECT seq FROM events ORDER BY seq LIMIT 1)"
            )


def snapshot(path: Path) -> sqlite3.Connection:
    """A copy in memory of a journal that another process may be writing. Raises JournalError."""
    if not path.is_file():
        raise JournalError(
            "there is no journal here", where=str(path), remedy="name the watcher's folder with --state-dir"
        )
    memory = sqlite3.connect(":memory:", isolation_level=None)
    try:
        disk = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, timeout=1.0)
        with contextlib.closing(disk):
            disk.backup(memory)
        migrate(memory, str(path))
    except sqlite3.DatabaseError as error:
        memory.close()
        raise JournalError(
            f"the journal cannot be read: {error}",
            where=str(path),
            remedy="check its permissions; a broken file is set aside when the watcher starts",
        ) from None
    return memory


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _transaction(connection: sqlite3.Connection, work: Work[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _check(connection: sqlite3.Connection) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {verdict}")


def _is_corrupt(error: sqlite3.DatabaseError) -> bool:
    return any(word in str(error) for word in _CORRUPT)
