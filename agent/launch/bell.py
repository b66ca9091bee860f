"""A bell that many tasks wait for: every ring wakes all who wait now. Knows nothing of the launcher."""

from __future__ import annotations

import asyncio


class Bell:
    """Wake-ups without state: who waits after the ring waits for the next one."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake everybody who waits."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, timeout: float | None = None) -> bool:
        """True when rung, False after ``timeout`` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
