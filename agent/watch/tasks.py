"""Supervision of the watcher's own tasks: one that fails is said and begun again, the others go on.

Knows nothing of vLLM. A cancelled supervisor cancels its task.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

from agent.model import Clock

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0)


async def supervise(
    name: str, body: Callable[[], Awaitable[None]], clock: Clock, report: Callable[[str], None]
) -> None:
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


async def every(seconds: float, body: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Call ``body`` at a fixed rate on the monotonic clock; a late round is not made up for."""
    due = clock.monotonic()
    while True:
        await body()
        due = max(due + seconds, clock.monotonic())
        await clock.sleep(max(0.0, due - clock.monotonic()))


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "no frame"
