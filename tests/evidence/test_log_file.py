"""Following a log that somebody else writes: late, growing, truncated, replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.collect import LogFile
from agent.model import SystemClock


async def take(file: LogFile, wanted: bytes) -> bytes:
    seen = b""

    async def read() -> None:
        nonlocal seen
        async for data in file.chunks():
            seen += data
            if wanted in seen:
                return

    await asyncio.wait_for(read(), 5)
    return seen


def follow(path: Path, **more: int) -> LogFile:
    return LogFile(path, SystemClock(), poll_seconds=0.01, **more)


async def test_a_file_that_appears_later_is_read(tmp_path: Path) -> None:
    path = tmp_path / "v.log"
    file = follow(path)
    reading = asyncio.create_task(take(file, b"one\n"))
    await asyncio.sleep(0.05)
    assert file.unread is not None
    assert str(path) in file.unread.reason
    path.write_bytes(b"one\n")
    assert await reading == b"one\n"
    assert file.unread is None


async def test_history_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "v.log"
    path.write_bytes(b"x" * 1000 + b"end")
    assert await take(follow(path, history=10), b"end") == b"x" * 7 + b"end"


async def test_truncation_and_replacement_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "v.log"
    path.write_bytes(b"long first content\n")
    file = follow(path)
    reading = asyncio.create_task(take(file, b"third"))
    await asyncio.sleep(0.05)
    path.write_bytes(b"second\n")
    await asyncio.sleep(0.05)
    path.unlink()
    path.write_bytes(b"third")
    assert await reading == b"long first content\nsecond\nthird"
