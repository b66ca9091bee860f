"""Supervision of the watcher's own tasks: one that fails is said and begun again, the others go on.

Knows nothing of vLLM. A cancelled supervisor cancels its task. Nothing here runs unseen: a task is either supervised
or held by :class:`OneTask`, which hands its failure on.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping

from agent.model import Clock

CANCEL_AGAIN_SECONDS = 1.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0)
Report = Callable[[str], None]


async def supervise(name: str, body: Callable[[], Awaitable[None]], clock: Clock, report: Report) -> None:
    """Run ``body`` until it returns; begin it again after an exception, with a growing pause."""
    failures = 0
    while True:
        began = clock.monotonic()
        try:
            await body()
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            report(f"task {name} failed and is begun again: {type(error).__name__}: {error} ({_place(error)})")
        failures = 0 if clock.monotonic() - began > 60 else failures + 1
        await clock.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])


async def every(seconds: Callable[[], float], body: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Call ``body`` at a fixed rate on the monotonic clock; a late round is not made up for.

    ``seconds`` is asked at each round, so that a changed configuration counts at once.
    """
    due = clock.monotonic()
    while True:
        await body()
        due = max(due + seconds(), clock.monotonic())
        await clock.sleep(max(0.0, due - clock.monotonic()))


async def together(bodies: Mapping[str, Callable[[], Awaitable[None]]], clock: Clock, report: Report) -> None:
    """Supervise all bodies until cancelled; when this returns or raises, none of them runs any more."""
    tasks = [asyncio.create_task(supervise(name, body, clock, report)) for name, body in bodies.items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end(tasks)


async def end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until they have ended.

    Once is not enough: before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that comes in the moment in
    which its own work completes, and a task in a loop would then run on for ever.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)


async def within(seconds: float, work: Coroutine[object, object, object]) -> bool:
    """Whether ``work`` was done in time; unlike ``asyncio.wait_for`` it swallows no cancellation."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    return bool(done)


class OneTask:
    """At most one piece of work at a time; ``failed`` gets the exception of one that breaks off."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether work is under way."""
        return self._task is not None and not self._task.done()

    def start(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Begin ``work``; False, and nothing is begun, while other work is under way."""
        if self.running:
            return False
        self._task = asyncio.create_task(self._guarded(work))
        return True

    async def stop(self) -> None:
        """Cancel what is under way and wait for its end."""
        if self._task is not None:
            await end([self._task])

    async def _guarded(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:  # it must not end in silence
            self._failed(error)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "no frame"
