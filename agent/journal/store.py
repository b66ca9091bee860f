"""A SQLite file that survives its disk.

In: small functions that read or write through a connection. Out: their results, always. While the file
cannot be written (disk full, read-only, locked, removed) the store works on a copy in memory and keeps
the writes, at most :data:`MAX_HELD_WRITES` (the oldest go first); they are run again on the file when the
disk allows it, tried every :data:`RETRY_SECONDS`. A file that is no longer a database is renamed
``.corrupt-<time>`` and a new one is begun from what is known. It never raises for the disk's sake after
it was opened; ``healthy`` and ``last_error`` say how it stands. A write may run twice, in memory and on
the file, so it names rows by key and never by a row number.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import deque
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
_BUSY, _LOCKED = 5, 6  # SQLite's result codes
_OWN_DEFECTS = (sqlite3.IntegrityError, sqlite3.ProgrammingError)
_READ_REMEDY = "check its permissions; a broken file is set aside when the watcher starts"
_CORRUPT = ("malformed", "not a database", "file is encrypted")


class Store:
    """One database; synchronous, one thread. See the module's text for what it promises."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises JournalError only for a file of a newer version."""
        self._path = path
        self._clock = clock
        self._retry_at = 0.0
        self._held: deque[Work[object]] = deque(maxlen=MAX_HELD_WRITES)
        self._identity: tuple[int, int] | None = None
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
            if isinstance(error, _OWN_DEFECTS):
                raise
            self._survive(error)
            return work(self._connection)

    def write(self, work: Work[T]) -> T:
        """Run a write in a transaction of its own; while the disk fails, again later on the file."""
        self.retry()
        try:
            self._check_place()
            result = _transaction(self._connection, work)
        except sqlite3.DatabaseError as error:
            if isinstance(error, _OWN_DEFECTS):
                raise
            self._survive(error)
            result = _transaction(self._connection, work)
        if self._memory is not None:
            self._held.append(work)
        return result

    def retry(self) -> bool:
        """Bring the file up to date where it is time to try; True when it is."""
        if self._memory is None:
            return True
        if self._clock.monotonic() < self._retry_at:
            return False
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        try:
            self._write_back(self._memory)
        except (sqlite3.DatabaseError, OSError, JournalError) as error:
            self.last_error = f"{self._path}: {error}"
            self._drop_disk()
            if isinstance(error, sqlite3.DatabaseError) and _is_corrupt(error):
                self._set_aside()
            return False
        self._memory.close()
        self._memory, self.last_error = None, None
        self._held.clear()
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

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _check(connection)
            migrate(connection, str(self._path))
            self._identity = _identity(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _write_back(self, memory: sqlite3.Connection) -> None:
        """Into a file that is there, the writes that it missed; into a new file, everything."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        anew = not self._path.exists()
        self._disk = self._disk or self._open()
        if anew:
            _backup(memory, self._disk)
            self._disk.execute("PRAGMA journal_mode = WAL")
        else:
            _transaction(self._disk, self._replay)

    def _replay(self, db: sqlite3.Connection) -> None:
        for work in self._held:
            with contextlib.suppress(JournalError):  # it built on a write that the bound had dropped
                work(db)

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was removed under it; nobody would ever read that again."""
        if self._memory is None and self._identity is not None and _identity(self._path) != self._identity:
            raise sqlite3.OperationalError("the file was removed or replaced")

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
        elif _identity(self._path) != self._identity:
            self._drop_disk()

    def _copy(self) -> sqlite3.Connection:
        """What the file holds, else an empty journal: a copy of broken pages would break again."""
        sources: list[Callable[[], sqlite3.Connection]] = []
        if self._disk is not None:
            sources.append(lambda disk=self._disk: disk)  # type: ignore[misc]
        elif self._path.exists():
            # Without room for SQLite's helper files the second way still reads all but the newest writes.
            sources += [lambda: _read_only(self._path), lambda: _read_only(self._path, "&immutable=1")]
        for source in sources:
            memory = _in_memory()
            try:
                _backup(source(), memory)
                _check(memory)
                migrate(memory, str(self._path))
            except sqlite3.DatabaseError:
                memory.close()
                continue
            return memory
        memory = _in_memory()
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


def snapshot(path: Path) -> sqlite3.Connection:
    """A copy in memory of a journal that another process may be writing. Raises JournalError."""
    try:
        found = path.is_file()
    except OSError as error:
        raise JournalError(
            f"the journal cannot be read: {error.strerror}", where=str(path), remedy=_READ_REMEDY
        ) from None
    if not found:
        raise JournalError(
            "there is no journal here", where=str(path), remedy="name the watcher's folder with --state-dir"
        )
    memory = _in_memory()
    try:
        with contextlib.closing(_read_only(path)) as disk:
            _backup(disk, memory)
        migrate(memory, str(path))
    except sqlite3.DatabaseError as error:
        memory.close()
        raise JournalError(f"the journal cannot be read: {error}", where=str(path), remedy=_READ_REMEDY) from None
    return memory


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def _read_only(path: Path, more: str = "") -> sqlite3.Connection:
    return sqlite3.connect(f"file:{_quoted(path)}?mode=ro{more}", uri=True, timeout=_BUSY_SECONDS)


def _backup(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """A whole copy; a locked file is an error here, where SQLite's module would wait for ever."""

    def progress(status: int, remaining: int, total: int) -> None:
        if status in (_BUSY, _LOCKED):
            raise sqlite3.OperationalError("database is locked")

    source.backup(target, progress=progress, sleep=_BUSY_SECONDS)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
