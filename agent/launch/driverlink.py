"""The owner's side of the driver's process: starts it, asks it with a limit, replaces it when it hangs or dies.

In: which Pythons may run it, its environment, and how to start a process (the launcher and the watcher differ there).
Out: the newest reading with its age, or why there is none; Xid events the moment they come. Never waits for a driver
beyond the limit, never raises for what the driver does, never starts a second process beside one that cannot be
killed: a driver that hangs in the kernel would collect them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Answer = dict[str, object]
Start = Callable[[Sequence[str], Mapping[str, str], int, int], "subprocess.Popen[bytes]"]
"""``(argv, environment, descriptor to read, descriptor to write) -> process``; raises OSError."""

ANSWER_SECONDS = 1.5
HANG_SECONDS = 10.0
IDLE_SECONDS = 120.0
NO_BINDING_SECONDS = 300.0
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
LINE_BYTES = 4 << 20
# The agent's own code only, so that its other packages never meet the server's Python.
# The working directory is no place for modules either: a file of any name may lie there.
BOOT = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; from agent.launch import driver;"
    " del sys.path[0]; driver.main()"
)
ROOT = str(Path(__file__).resolve().parents[2])


def trouble(kind: str, reason: str) -> Answer:
    """An answer without a reading."""
    return {"trouble": {"kind": kind, "reason": reason, "fresh": False}}


class DriverLink:
    """One driver process at a time, started on the first read and ended when nobody reads."""

    def __init__(
        self,
        start: Start,
        pythons: Callable[[], Sequence[str]],
        env: Callable[[], Mapping[str, str]],
        on_xid: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._start = start
        self._pythons = pythons
        self._env = env
        self._on_xid = on_xid
        self._process: subprocess.Popen[bytes] | None = None
        self._input: int | None = None
        self._output: int | None = None
        self._buffer = b""
        self._number = 0
        self._pending: asyncio.Future[Answer] | None = None
        self._asked_at = 0.0
        self._last: Answer | None = None
        self._last_at = 0.0
        self._dying: subprocess.Popen[bytes] | None = None
        self._choice = 0
        self._failures = 0
        self._not_before = 0.0
        self._trouble: Answer = trouble("unknown", "the driver was not asked yet")
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return self._process.pid if self._process is not None else None

    async def read(
        self, *, costly: bool = False, own: Sequence[int] | None = None, limit: float = ANSWER_SECONDS
    ) -> Answer:
        """``{backend, cards, …}`` with ``age_seconds`` 0; after ``limit`` seconds the last one with its age and a
        ``trouble`` of kind ``slow``; else ``{"trouble": {kind, reason}}``."""
        return await self._request({"costly": costly, "own": None if own is None else list(own)}, limit)

    async def costs(self, repeat: int, limit: float) -> Answer:
        """What each field costs, ``{costs: {field: {mean, max}}}`` in milliseconds."""
        return await self._request({"costs": repeat}, limit)

    def close(self) -> None:
        """End the process: its input ends, and it is killed in case it does not notice."""
        if self._idle is not None:
            self._idle.cancel()
        self._kill()

    # --- asking

    async def _request(self, request: Mapping[str, object], limit: float) -> Answer:
        loop = asyncio.get_running_loop()
        self._stay_until(loop.time() + IDLE_SECONDS)
        if self._pending is None or self._pending.done():
            if self._process is None and not self._begin(loop):
                return self._trouble
            self._ask(loop, request)
        assert self._pending is not None
        try:
            answer = await asyncio.wait_for(asyncio.shield(self._pending), limit)
        except asyncio.TimeoutError:
            return self._slow(loop.time())
        return self._judge(answer, loop)

    def _stay_until(self, moment: float) -> None:
        """An open driver cannot be unloaded by its administrator; so it is left when nobody reads."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_at(moment, self._kill)

    def _ask(self, loop: asyncio.AbstractEventLoop, request: Mapping[str, object]) -> None:
        self._number += 1
        self._pending = loop.create_future()
        self._asked_at = loop.time()
        line = json.dumps({"id": self._number, **request}).encode() + b"\n"
        try:
            assert self._input is not None
            os.write(self._input, line)
        except OSError:
            self._gone()

    def _slow(self, now: float) -> Answer:
        waited = now - self._asked_at
        if waited >= HANG_SECONDS:
            self._kill()
            self._later(trouble("hang", f"the GPU driver gave no answer for {waited:.0f} s; its process was killed"))
            return self._trouble
        words = {"kind": "slow", "reason": f"the GPU driver has not answered for {waited:.1f} s", "fresh": False}
        if self._last is None:
            return {"trouble": words}
        return {**self._last, "age_seconds": now - self._last_at, "trouble": words}

    def _judge(self, answer: Answer, loop: asyncio.AbstractEventLoop) -> Answer:
        found = answer.get("trouble")
        if not isinstance(found, dict):
            self._failures = 0
            return {**answer, "age_seconds": loop.time() - self._last_at}
        self._last = None
        if found.get("kind") == "no-binding":
            self._kill()
            self._next_python(answer, loop)
        elif found.get("fresh"):
            self._kill()
            self._later(answer)
        return answer

    def _next_python(self, answer: Answer, loop: asyncio.AbstractEventLoop) -> None:
        self._choice += 1
        self._trouble = answer
        if self._choice >= len(self._pythons()):
            self._choice = 0
            self._not_before = loop.time() + NO_BINDING_SECONDS

    def _later(self, answer: Answer) -> None:
        """No new process before the pause is over."""
        pause = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + pause
        self._trouble = answer
        self._last = None

    # --- the process

    def _begin(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start one, unless it is too early; ``_trouble`` then says why."""
        if loop.time() < self._not_before or self._still_dying():
            return False
        pythons = self._pythons()
        if not pythons:
            self._trouble = trouble("no-binding", "no Python was found that could ask the driver")
            return False
        theirs_in, mine_out = os.pipe()
        mine_in, theirs_out = os.pipe()
        argv = [pythons[self._choice % len(pythons)], "-c", BOOT, ROOT]
        try:
            self._process = self._start(argv, self._env(), theirs_in, theirs_out)
        except OSError as error:
            for descriptor in (mine_out, mine_in):
                os.close(descriptor)
            self._next_python(trouble("no-binding", f"{argv[0]} cannot be run: {error.strerror or error}"), loop)
            return False
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(mine_out, False)
        os.set_blocking(mine_in, False)
        self._input, self._output, self._buffer = mine_out, mine_in, b""
        loop.add_reader(mine_in, self._readable)
        return True

    def _still_dying(self) -> bool:
        if self._dying is not None and self._dying.poll() is None:
            self._trouble = trouble(
                "hang", f"process {self._dying.pid}, which asked the GPU driver, was killed and has not ended"
            )
            return True
        self._dying = None
        return False

    def _readable(self) -> None:
        assert self._output is not None
        try:
            data = os.read(self._output, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if not data or len(self._buffer) > LINE_BYTES:
            self._gone()
            return
        for line in lines:
            with contextlib.suppress(ValueError):
                self._line(json.loads(line))

    def _line(self, document: Answer) -> None:
        xid = document.get("xid")
        if isinstance(xid, dict):
            self._on_xid(xid)
        elif document.pop("id", None) == self._number and self._pending is not None and not self._pending.done():
            if "cards" in document:
                self._last, self._last_at = document, asyncio.get_running_loop().time()
            self._pending.set_result(document)

    def _gone(self) -> None:
        """It ended by itself or sends nonsense."""
        self._kill()
        self._later(trouble("died", "the process that asks the GPU driver died"))

    def _kill(self) -> None:
        if self._input is not None:
            os.close(self._input)
            self._input = None
        if self._output is not None:
            asyncio.get_running_loop().remove_reader(self._output)
            os.close(self._output)
            self._output = None
        if self._pending is not None and not self._pending.done():
            self._pending.set_result(trouble("died", "the process that asks the GPU driver was ended"))
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            self._dying = process
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
