"""What vLLM prints: templates of real log lines, filled in and written at once.

In come a template's name and its values; out go whole lines on stdout or stderr with the prefix of the
process that speaks. The templates are data in ``texts/``, one file a moment of the server's life, cut from
logs of vLLM 0.32.0 and 0.25.1; ``@name@`` is a place to fill. Python's logging is not used: one `write` a
block keeps the two processes' lines apart and the cost low. A reader that has gone away is not an error: vLLM
would not notice either.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from functools import cache

from agent.sim.flags import TEXTS

OUT, ERR = 1, 2
_PLACE = re.compile(r"@([a-z_]+)@")


@cache
def template(name: str, version: str) -> str:
    """A template's text; a file that carries the version in its name wins."""
    path = TEXTS / f"{name}-{version}.txt"
    # Bytes, not text: a carriage return of a progress bar must stay one.
    return (path if path.exists() else TEXTS / f"{name}.txt").read_bytes().decode()


class Voice:
    """Prints in the name of one server; knows both processes' ids once the engine is there."""

    def __init__(self, version: str, api_pid: int) -> None:
        self.version = version
        self.common = {"version": version, "api": str(api_pid), "engine": "0"}

    def engine_is(self, pid: int) -> None:
        """From now on lines of the engine carry this process id."""
        self.common["engine"] = str(pid)

    def say(self, name: str, fd: int = OUT, /, **values: object) -> None:
        """Print one template with its places filled; a place without a value is a bug and raises KeyError."""
        write(fd, self.fill(template(name, self.version), values))

    def fill(self, text: str, values: dict[str, object]) -> str:
        now = time.localtime()
        places = {**self.common, "t": time.strftime("%m-%d %H:%M:%S", now)}
        places.update((key, str(value)) for key, value in values.items())
        return _PLACE.sub(lambda found: places[found.group(1)], text)

    def uvicorn(self, line: str, fd: int = OUT) -> None:
        """A line of the HTTP server: bare in 0.32, with the process prefix in 0.25."""
        prefix = "" if self.version != "0.25.1" else f"(APIServer pid={self.common['api']}) "
        write(fd, f"{prefix}{line}\n")


def write(fd: int, text: str) -> None:
    """All of ``text`` to the descriptor, blocking as vLLM's own handler does; a closed reader is ignored."""
    data = memoryview(text.encode())
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]
