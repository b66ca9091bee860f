"""Which process of this host listens on a port.

In: a port. Out: a pid. The kernel lists listening sockets before all others (net/ipv4/tcp_ipv4.c, tcp_seq_start), so
reading ends at the first connection: a busy server has tens of thousands of them. The process that was found last is
asked first, so that all processes' descriptors are gone through only when the server is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

LISTEN = "0A"


class Listener:
    """Of one port. ``proc`` is for tests."""

    def __init__(self, port: int, *, proc: Path = Path("/proc")) -> None:
        self._port = f"{port:04X}"
        self._proc = proc
        self._pid: int | None = None

    def pid(self) -> int | None:
        """The process with the lowest pid, None where there is none or it may not be seen. Blocks some milliseconds."""
        sockets = {f"socket:[{inode}]" for inode in self._inodes()}
        if not sockets:
            self._pid = None
        elif self._pid is None or not self._holds(self._pid, sockets):
            self._pid = next((pid for pid in self._pids() if self._holds(pid, sockets)), None)
        return self._pid

    def _inodes(self) -> Iterator[str]:
        for name in ("tcp", "tcp6"):
            try:
                with (self._proc / "net" / name).open(encoding="ascii") as lines:
                    next(lines, None)
                    yield from self._of_port(lines)
            except OSError:
                continue

    def _of_port(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            cells = line.split(maxsplit=10)
            if len(cells) < 10 or cells[3] != LISTEN:
                return
            if cells[1].endswith(f":{self._port}"):
                yield cells[9]

    def _pids(self) -> list[int]:
        return sorted(int(one.name) for one in self._proc.iterdir() if one.name.isdigit())

    def _holds(self, pid: int, sockets: set[str]) -> bool:
        """False too where the process has ended or its descriptors may not be read."""
        try:
            return any(_target(one) in sockets for one in (self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""
