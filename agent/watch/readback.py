"""The cause of an end that nobody watched, read from the launcher's kept log.

In: an exit record whose start is over and followed by another. Out: its cause, or None where the log no longer
holds it or names nothing. Only the last megabytes before the exit are read, and only those of the start that ended.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from agent.diagnose import LogSession
from agent.errors import LauncherError
from agent.launch import LauncherClient
from agent.model import Cause, Exit
from agent.watch.source import Watched
from agent.watch.world import World

READ_BYTES = 4 * 2**20
READ_SECONDS = 5.0


async def read_back(client: LauncherClient, record: Exit, world: World, watched: Watched) -> Cause | None:
    """Never raises for a launcher that is away or slow: the end is then told without its cause."""
    try:
        session = await asyncio.wait_for(_read(client, record, world, watched.name), READ_SECONDS)
    except (LauncherError, asyncio.TimeoutError):
        return None
    session.finish()
    causes = session.conclude(watched.evidence.context_of(record))
    return causes[0] if causes else None


async def _read(client: LauncherClient, record: Exit, world: World, name: str) -> LogSession:
    session = LogSession(world.catalogue, source=f"{name} log")
    begins: int | None = None
    if record.log_offset <= 0:
        return session
    async with aclosing(client.log(max(0, record.log_offset - READ_BYTES))) as chunks:
        async for chunk in chunks:
            if chunk.offset >= record.log_offset:
                break
            if chunk.start != begins:
                session, begins = LogSession(world.catalogue, source=f"{name} log"), chunk.start
            session.feed(chunk.data[: record.log_offset - chunk.offset])
            if chunk.end >= record.log_offset:
                break
            await asyncio.sleep(0)
    return session
