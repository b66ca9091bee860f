"""One watcher for one state folder, held by a lock that the kernel drops when the process ends, however it
ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from agent.errors import JournalError

LOCK_NAME = "journal.lock"


class StateLock:
    """An exclusive lock on a state folder; the folder is made (0700) where it is missing."""

    def __init__(self, state_dir: Path) -> None:
        """Raises JournalError when the folder cannot be written or another watcher holds it."""
        path = state_dir / LOCK_NAME
        remedy = "make the folder writable for the agent's user, or name another with --state-dir"
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalError(
                f"the state folder cannot be written: {reason}", where=str(state_dir), remedy=remedy
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._fd, 20).decode(errors="replace").strip()
            os.close(self._fd)
            raise JournalError(
                f"another watcher{f' (pid {holder})' if holder else ''} uses this state folder",
                where=str(state_dir),
                remedy="stop it, or give this one its own --state-dir",
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the pid is a courtesy, the lock holds without it
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next watcher in; the file stays, since removing it would race with its next owner."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
