"""Clients that send rubbish, send without end, never read or never speak: the launcher answers and stays itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path

import pytest

from agent.launch.wire import MAX_CONNECTIONS, MAX_DESCRIPTORS
from tests.launch.harness import Factory, Launched
from tests.launch.test_wire import line, raw


def descriptors(launched: Launched) -> int:
    return len(os.listdir(f"/proc/{launched.process.pid}/fd"))


def resident_bytes(launched: Launched) -> int:
    pages = Path(f"/proc/{launched.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def quiet(launched: Launched) -> bool:
    text = launched.stderr_path.read_text()
    return "Traceback" not in text and "exception" not in text.lower()


async def test_odd_text_gets_a_code_and_leaves_no_traceback(launch: Factory, vllm_like: list[str]) -> None:
    launched = launch(command=vllm_like)
    await launched.event("started")
    huge = "9" * 5000
    path = {"TRITON_PTXAS_PATH": "/usr/bin/\ud800"}
    cases = [
        (line(launched, token="\ud800"), "forbidden"),
        (line(launched, verb="\ud800"), "unknown-verb"),
        (line(launched, verb="x" * 60000), "unknown-verb"),
        (line(launched, args={"\ud800": 1}), "bad-args"),
        (line(launched, verb="set-overrides", args={"env": path}), "refused"),
        (line(launched, verb="set-overrides", args={"flags": [["--max-num-seqs", huge]]}), "refused"),
        (line(launched, verb="set-overrides", args={"incident": "\ud800"}), "refused"),
        (line(launched, verb="probe", args={"name": "ptxas", "arch": huge}), "bad-args"),
        (line(launched, verb="hold", args={"exit_seq": 1, "seconds": float("nan")}), "bad-args"),
        (line(launched, verb="stop", args={"timeout": float("inf")}), "bad-args"),
    ]
    for data, code in cases:
        answer = await raw(launched, data)
        error = answer["error"]
        assert isinstance(error, dict) and error["code"] == code, (data[:80], answer)
        assert len(json.dumps(answer)) < 3000
    assert (await launched.status())["child_pid"] and quiet(launched)


@pytest.mark.parametrize("identity", [{"a": 1}, ["x"] * 1000, "x" * 1000, True, float("nan")])
async def test_an_id_that_is_no_id_is_not_repeated(launch: Factory, identity: object) -> None:
    launched = launch()
    await launched.event("started")
    answer = await raw(launched, line(launched, id=identity))
    assert answer["id"] is None and answer["ok"] is True


async def test_a_stream_reader_that_sends_without_end_costs_no_memory(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    reader, writer = await asyncio.open_unix_connection(str(launched.run_dir / "control.sock"))
    writer.write(line(launched, verb="events"))
    await asyncio.wait_for(reader.readline(), 10)
    before = resident_bytes(launched)
    for _ in range(640):
        writer.write(b"x" * 100_000)
        await asyncio.wait_for(writer.drain(), 10)
    assert resident_bytes(launched) - before < 20_000_000
    writer.close()
    assert (await launched.status())["child_pid"]


async def test_a_stream_reader_that_never_reads_costs_little_and_delays_nobody(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    silent = []
    for _ in range(20):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(launched.run_dir / "control.sock"))
        client.sendall(line(launched, verb="log"))
        silent.append(client)
    before = resident_bytes(launched)
    for _ in range(5):
        assert (await asyncio.wait_for(launched.status(), 10))["child_pid"]
    assert resident_bytes(launched) - before < 20_000_000
    for client in silent:
        client.close()


async def test_a_flood_on_the_socket_takes_no_more_descriptors_than_it_may(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    before = descriptors(launched)
    clients = []
    for _ in range(3 * MAX_DESCRIPTORS):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(5)
        with contextlib.suppress(OSError):
            client.connect(str(launched.run_dir / "control.sock"))
        clients.append(client)
        await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    taken = descriptors(launched) - before
    for client in clients:
        client.close()
    assert MAX_CONNECTIONS <= taken <= MAX_DESCRIPTORS + 2
    await launched.wait_for(lambda: answers(launched))
    assert quiet(launched)


async def answers(launched: Launched) -> bool:
    with contextlib.suppress(Exception):
        return bool((await launched.status())["child_pid"])
    return False


async def test_idle_connections_on_the_probe_port_keep_no_kubelet_out(launch: Factory) -> None:
    launched = launch(probe=True)
    await launched.event("started")
    before = descriptors(launched)
    idle = []
    for number in range(600):
        client = socket.create_connection(("127.0.0.1", launched.probe), timeout=5)
        if number % 2:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        idle.append(client)
    reader, writer = await asyncio.open_connection("127.0.0.1", launched.probe)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert descriptors(launched) - before <= 140
    writer.close()
    for client in idle:
        client.close()
    assert quiet(launched)
