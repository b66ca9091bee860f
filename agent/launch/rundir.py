"""The run-dir: one folder, one server, one launcher.

Holds ``lock control.sock token overrides.json exits.jsonl starts.json freeze log/``. In: a path. Out: small
typed reads and writes. Never lets a full disk stop the server: every write at run time reports its failure
and goes on; only at start is an unusable folder an error.

Members of its group may write there, so no file is trusted for its name: none is reached through a symbolic link,
none is read that is not a regular file of bounded size (a pipe would hold the launcher up for ever).

The lock is an flock, so it goes with its holder; the guard process holds it too, until the old server is
really gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.errors import AgentError, UsageError

DEFAULT_RUN_DIR = "/run/vllm-agent/default"
FOLDER_MODE = 0o2770
EXITS_MAX_BYTES = 1 << 20
EXITS_KEPT = 100
READ_MAX_BYTES = 4 << 20
LOCK_WAIT_SECONDS = 10.0


def default_run_dir() -> Path:
    """``$VLLM_AGENT_RUN_DIR``, else ``/run/vllm-agent/default``."""
    return Path(os.environ.get("VLLM_AGENT_RUN_DIR") or DEFAULT_RUN_DIR)


@dataclass(frozen=True)
class Counters:
    """``starts.json``: what survives the launcher. Failures are epoch seconds, without progress in
    between.
    """

    event_seq: int = 0
    exit_seq: int = 0
    starts: int = 0
    failures: tuple[float, ...] = ()
    breaker_open: bool = False

    @staticmethod
    def from_json(document: object) -> Counters:
        """Raises ValueError for anything that this launcher did not write."""
        if not isinstance(document, dict) or document.get("v") != 1:
            raise ValueError("not a version 1 document")
        numbers = [document.get(key) for key in ("event_seq", "exit_seq", "starts")]
        failures = document.get("failures")
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError("a counter is missing or negative")
        if not isinstance(failures, list) or not all(isinstance(f, (int, float)) for f in failures):
            raise ValueError("failures is not a list of times")
        breaker = document.get("breaker_open")
        if not isinstance(breaker, bool):
            raise ValueError("breaker_open is not true or false")
        event_seq, exit_seq, starts = (int(str(number)) for number in numbers)
        return Counters(event_seq, exit_seq, starts, tuple(float(f) for f in failures), breaker)

    def to_json(self) -> dict[str, object]:
        """The document with its version."""
        return {
            "v": 1, "event_seq": self.event_seq, "exit_seq": self.exit_seq, "starts": self.starts,
            "failures": list(self.failures), "breaker_open": self.breaker_open,
        }  # fmt: skip


class RunDir:
    """One locked run-dir. Build it with :func:`open_run_dir`."""

    def __init__(self, path: Path, lock_fd: int, report: Callable[[str], None]) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self._report = report
        self._unwritten: deque[bytes] = deque(maxlen=EXITS_KEPT)
        self.token = self._ensure_token()

    @property
    def socket_path(self) -> Path:
        return self.path / "control.sock"

    @property
    def log_path(self) -> Path:
        return self.path / "log"

    @property
    def overrides_path(self) -> Path:
        return self.path / "overrides.json"

    @property
    def frozen(self) -> bool:
        """Whether a person froze all acting; the file is the only truth."""
        return os.path.lexists(self.path / "freeze")

    def set_frozen(self, frozen: bool) -> None:
        """Write or remove the freeze file. Raises OSError."""
        if frozen:
            create_once(self.path / "freeze", 0o660)
        else:
            (self.path / "freeze").unlink(missing_ok=True)

    def read_counters(self) -> tuple[Counters, str | None]:
        """The counters, and a notice where the file was unusable (it is then kept as ``.rejected``)."""
        path = self.path / "starts.json"
        try:
            return Counters.from_json(json.loads(read_regular(path))), None
        except FileNotFoundError:
            return Counters(exit_seq=self.last_exit_seq()), None
        except (OSError, ValueError, RecursionError) as error:
            kept = reject(path)
            fresh = Counters(event_seq=int(time.time()), exit_seq=self.last_exit_seq())
            return fresh, f"{path} is unusable ({error}); counters start anew, the file is kept as {kept}"

    def write_counters(self, counters: Counters) -> None:
        """Atomic; a failure is reported, never raised."""
        self.try_write("starts.json", counters.to_json())

    def try_write(self, name: str, document: Mapping[str, object]) -> bool:
        """Atomic write of a JSON file that the server does not depend on."""
        try:
            write_json(self.path / name, document)
        except OSError as error:
            self._report(f"{self.path / name} could not be written: {error.strerror or error}")
            return False
        return True

    def append_exit(self, record: Mapping[str, object]) -> None:
        """One line to ``exits.jsonl``; the file stays under 1 MiB by keeping its newer half.

        What a full disk refuses is kept, and written with the next record.
        """
        path = self.path / "exits.jsonl"
        self._unwritten.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        try:
            self._trim_exits(path)
            append_lines(path, b"".join(self._unwritten))
        except OSError as error:
            self._report(f"{path} could not be written: {error.strerror or error}; the record waits for the next exit")
            return
        self._unwritten.clear()

    def _trim_exits(self, path: Path) -> None:
        if path.exists() and path.stat().st_size > EXITS_MAX_BYTES:
            lines = read_regular(path, tail=True).splitlines(keepends=True)
            write_bytes(path, b"".join(lines[len(lines) // 2 :]))

    def last_exit(self) -> dict[str, object] | None:
        """The newest readable exit record, or None."""
        try:
            lines = read_regular(self.path / "exits.jsonl", tail=True).splitlines()
        except OSError:
            return None
        for line in reversed(lines):
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("seq"), int):
                    return record
        return None

    def last_exit_seq(self) -> int:
        """Number of the newest exit, 0 where there is none."""
        record = self.last_exit() or {}
        seq = record.get("seq", 0)
        return seq if isinstance(seq, int) else 0

    def _ensure_token(self) -> str:
        path = self.path / "token"
        with contextlib.suppress(OSError, ValueError):
            text = read_regular(path, private=True).decode("ascii").strip()
            if len(text) == 64:
                return text
        token = os.urandom(32).hex()
        write_bytes(path, token.encode() + b"\n", mode=0o640)
        return token


def open_run_dir(path: Path, report: Callable[[str], None], trusted_uids: frozenset[int] = frozenset()) -> RunDir:
    """Create, check and lock the folder. Raises AgentError with the remedy.

    A folder of another user than root, the launcher's or ``trusted_uids`` is refused: its owner could exchange every
    file in it, and under /tmp anybody may have made it first.
    """
    remedy = "choose another folder with --run-dir, or make this one writable for this user"
    try:
        path.mkdir(parents=True, exist_ok=True)
        _prepare(path, report, trusted_uids | {0, os.geteuid()})
        return RunDir(path, _lock(path), report)
    except OSError as error:
        raise AgentError(
            f"the run-dir cannot be used: {error.strerror or error}", where=str(path), remedy=remedy
        ) from error


def _prepare(path: Path, report: Callable[[str], None], trusted: frozenset[int]) -> None:
    """Check the owner of what was really opened, then set its mode."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        strangers = [uid for uid in (info.st_uid, path.lstat().st_uid) if uid not in trusted]
        if strangers:
            raise UsageError(
                f"the run-dir, or the link to it, belongs to user {strangers[0]}",
                where=str(path),
                remedy=f"choose another folder with --run-dir, or trust that user with --allow-uid {strangers[0]}",
            )
        try:
            os.fchmod(descriptor, FOLDER_MODE)
        except PermissionError:
            open_to = ", and everybody may write there" if info.st_mode & stat.S_IWOTH else ""
            report(f"{path} belongs to somebody else; its mode stays as it is{open_to}")
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    """The locked descriptor. Waits a little where the holder is dead but its guard still cleans up."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            if _alive(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise UsageError(
                    f"another launcher (pid {holder or 'unknown'}) holds this run-dir",
                    where=str(path),
                    remedy="give each server its own --run-dir, or stop the other launcher",
                ) from None
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _alive(pid: str) -> bool:
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of ``path`` short enough for a unix socket (108 bytes, unix(7)), by way of its open folder."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def reject(path: Path) -> str:
    """Move an unusable file to ``NAME.rejected``; returns where it lies now (itself where that failed)."""
    target = path.with_name(path.name + ".rejected")
    try:
        path.replace(target)
    except OSError:
        return str(path)
    return str(target)


def create_once(path: Path, mode: int) -> None:
    """An empty file, unless something of that name is there; never through a symbolic link. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))


def read_regular(path: Path, limit: int = READ_MAX_BYTES, *, tail: bool = False, private: bool = False) -> bytes:
    """The content of a regular file that is no symbolic link. Raises OSError, also where it is longer than ``limit``;
    with ``tail`` the last ``limit`` bytes of it. ``private``: it must be this user's and closed to others.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if private and (info.st_uid != os.geteuid() or info.st_mode & 0o007):
            raise OSError(errno.EPERM, "of another user, or open to others")
        if tail and info.st_size > limit:
            file.seek(-limit, os.SEEK_END)
        data = file.read(limit + 1)
    if len(data) > limit and not tail:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes")
    return data[:limit]


def append_lines(path: Path, lines: bytes) -> None:
    """All of ``lines`` or nothing; a half line that a crash left before them is ended first. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = b"\n" + lines if torn else lines
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Atomic: a reader sees the old file or the new one. Raises OSError."""
    write_bytes(path, json.dumps(document, indent=1).encode() + b"\n")


def write_bytes(path: Path, data: bytes, mode: int = 0o660) -> None:
    """Write beside, sync, rename. Raises OSError and leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
