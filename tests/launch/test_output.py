"""The server's output: kept, passed on, never a brake."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.launch.clock import Clock
from agent.launch.logstore import LogStore
from agent.launch.scan import MARKER, ShutdownScanner
from agent.launch.tee import Tee
from tests.launch.harness import Factory, Launched


def store(folder: Path, notices: list[str], ring: int = 64, size: int = 100, count: int = 3) -> LogStore:
    return LogStore(folder, Clock(), notices.append, ring_bytes=ring, file_bytes=size, file_count=count)


def read_all(log: LogStore, offset: int, limit: int = 17) -> tuple[bytes, int]:
    data, dropped = b"", 0
    while True:
        piece = log.read(offset, limit)
        if not piece.data:
            return data, dropped
        dropped += piece.dropped
        data += piece.data
        offset = piece.end


def test_what_left_the_ring_is_read_from_the_files(tmp_path: Path) -> None:
    log = store(tmp_path, [])
    written = b""
    for index in range(40):
        line = f"line {index:03d}\n".encode()
        log.append(line)
        written += line
    kept = written[log.start :]
    assert log.end == len(written) and log.start > 0
    assert read_all(log, 0) == (kept, log.start)
    assert read_all(log, log.end - 5) == (written[-5:], 0)
    assert log.read(log.end + 99, 10).data == b""
    assert len(list(tmp_path.glob("*.log"))) <= 3


def test_offsets_go_on_where_the_files_end(tmp_path: Path) -> None:
    first = store(tmp_path, [])
    first.append(b"before\n")
    first.close()
    second = store(tmp_path, [])
    assert second.end == 7
    second.append(b"after\n")
    assert read_all(second, 0) == (b"before\nafter\n", 0)


def test_a_chunk_larger_than_the_ring_keeps_its_end(tmp_path: Path) -> None:
    log = store(tmp_path / "missing" / "deeper", [])
    log.append(b"a" * 100 + b"b" * 64)
    assert read_all(log, 0) == (b"b" * 64, 100)


def test_a_full_disk_costs_only_the_files(tmp_path: Path) -> None:
    notices: list[str] = []
    log = store(tmp_path, notices)
    log.append(b"one\n")
    os.close(log._fd or -1)
    log._fd = os.open("/dev/full", os.O_WRONLY)
    for _ in range(3):
        log.append(b"two\n")
    assert read_all(log, 0) == (b"one\ntwo\ntwo\ntwo\n", 0)
    assert len(notices) == 1 and "No space left" in notices[0]


async def test_a_tee_that_nobody_reads_drops_and_marks() -> None:
    reader, writer = os.pipe()
    tee = Tee(asyncio.get_running_loop(), writer, buffer_bytes=10_000)
    begun = time.monotonic()
    for index in range(5000):
        tee.write(f"{index:05d} {'y' * 93}\n".encode())
    assert time.monotonic() - begun < 2
    assert tee.stalled and tee.dropped_bytes > 300_000
    got = b""
    os.set_blocking(reader, False)
    for _ in range(100):
        await asyncio.sleep(0.005)
        try:
            got += os.read(reader, 1 << 20)
        except BlockingIOError:
            if not tee.stalled:
                break
    tee.write(b"again\n")
    got += os.read(reader, 1 << 20)
    assert f"[agent launch: {tee.dropped_bytes} bytes dropped here".encode() in got
    assert got.endswith(b"again\n")
    assert os.get_blocking(writer), "the shared description stays as it was"
    tee.close()
    os.close(reader)
    os.close(writer)


async def test_a_tee_into_a_closed_pipe_goes_on_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    tee = Tee(asyncio.get_running_loop(), writer)
    for _ in range(3):
        tee.write(b"lost\n")
    assert tee.dropped_bytes == 15
    tee.close()
    os.close(writer)


@pytest.mark.parametrize("target", ["/dev/null", "/dev/full"])
async def test_a_tee_into_a_device(target: str) -> None:
    descriptor = os.open(target, os.O_WRONLY)
    tee = Tee(asyncio.get_running_loop(), descriptor)
    tee.write(b"text\n")
    assert tee.written_bytes + tee.dropped_bytes == 5
    tee.close()
    os.close(descriptor)


async def test_an_unread_stdout_does_not_slow_the_server(launch: Factory) -> None:
    reader, writer = os.pipe()  # nobody ever reads
    launched = launch("--flood", "20000000", stdout=writer)
    os.close(writer)

    async def done() -> bool:
        return "flood done" in (await tail(launched))

    await launched.wait_for(done)
    seconds = float((await tail(launched)).split("flood done in ")[1].split()[0])
    assert seconds < 15, "200,000 lines"
    status = await launched.status()
    assert int(str(status["dropped_bytes"])) > 10_000_000
    os.close(reader)


async def tail(launched: Launched) -> str:
    files = sorted((launched.run_dir / "log").glob("*.log"))
    return files[-1].read_text()[-4000:] if files else ""


async def test_stdout_carries_what_the_server_printed(launch: Factory) -> None:
    reader, writer = os.pipe()
    launched = launch(stdout=writer)
    os.close(writer)
    await launched.event("started")

    async def printed() -> bool:
        return "VLLM_USE_DEEP_GEMM" in await launched.text()

    await launched.wait_for(printed)
    await launched.client.call("stop")
    await launched.ended()
    with os.fdopen(reader, "rb") as file:
        assert file.read().decode() == await launched.text()


def test_a_shutdown_line_counts_only_without_an_error_before_it() -> None:
    calm = ShutdownScanner()
    calm.feed(b"all is well\n" + MARKER[:20], 1.0)
    calm.feed(MARKER[20:] + b"\nTraceback (most recent call last):\n", 1.1)
    assert calm.told_to_stop, "split over two chunks, errors after it are normal"
    broken = ShutdownScanner()
    broken.feed(b"(EngineCore pid=1) ERROR 11-30 boom\n", 1.0)
    broken.feed(MARKER, 2.0)
    assert not broken.told_to_stop
    old = ShutdownScanner()
    old.feed(b"(EngineCore pid=1) ERROR 11-30 long ago\n", 1.0)
    old.feed(MARKER, 3600.0)
    assert old.told_to_stop


def test_importing_the_face_is_light() -> None:
    heavy = ("asyncio", "ctypes", "argparse", "ssl", "json")
    code = f"import sys, agent.launch; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_no_piece_crosses_the_beginning_of_a_start_and_each_names_its_own(tmp_path: Path) -> None:
    earlier = store(tmp_path, [])
    earlier.append(b"of an earlier launcher\n")
    earlier.close()
    log = store(tmp_path, [])
    first = log.mark()
    log.append(b"first\n")
    second = log.mark()
    log.append(b"second\n")
    pieces = []
    offset = 0
    while (piece := log.read(offset, 1000)).data:
        pieces.append((piece.data, piece.start))
        offset = piece.end
    assert pieces == [(b"of an earlier launcher\n", None), (b"first\n", first), (b"second\n", second)]
