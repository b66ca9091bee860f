"""The control socket: who may speak, what is understood, what every verb answers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent.errors import LauncherError
from agent.launch import LauncherClient
from tests.launch.harness import Factory, Launched


async def raw(launched: Launched, data: bytes) -> dict[str, object]:
    reader, writer = await asyncio.open_unix_connection(str(launched.run_dir / "control.sock"), limit=1 << 20)
    writer.write(data)
    await writer.drain()
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def line(launched: Launched, **changes: object) -> bytes:
    token = (launched.run_dir / "token").read_text().strip()
    request = {"v": 1, "id": 7, "token": token, "verb": "status", "args": {}, **changes}
    return json.dumps(request).encode() + b"\n"


async def test_bad_lines_get_a_code_and_a_remedy_and_harm_nothing(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    cases = [
        (b"\xff\x00garbage\n", "bad-request"),
        (b"[1]\n", "bad-request"),
        (b"[" * 50000 + b"\n", "bad-request"),
        (b"x" * 70000 + b"\n", "bad-request"),
        (line(launched, v=9), "version"),
        (line(launched, token="wrong"), "forbidden"),
        (line(launched, token=None), "forbidden"),
        (line(launched, token="é"), "forbidden"),
        (line(launched, verb="rm"), "unknown-verb"),
        (line(launched, verb=3), "bad-request"),
        (line(launched, args=[]), "bad-request"),
        (line(launched, args={"x": 1}), "bad-args"),
        (line(launched, verb="hold", args={"exit_seq": "1", "seconds": 3}), "bad-args"),
        (line(launched, verb="hold", args={"exit_seq": 1, "seconds": 61}), "bad-args"),
        (line(launched, verb="verdict", args={"state": "fine"}), "bad-args"),
        (line(launched, verb="probe", args={"name": "disk"}), "bad-args"),
        (line(launched, verb="events", args={"after": -1}), "bad-args"),
    ]
    for data, code in cases:
        answer = await raw(launched, data)
        assert answer["ok"] is False
        error = answer["error"]
        assert isinstance(error, dict) and error["code"] == code and error["remedy"], (data[:40], error)
    good = await raw(launched, line(launched))
    assert good["ok"] is True and good["id"] == 7 and good["v"] == 1
    assert "Traceback" not in launched.stderr_path.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
async def test_a_stranger_is_refused_even_with_the_token(launch: Factory) -> None:
    with tempfile.TemporaryDirectory(prefix="agent-open-") as folder:
        Path(folder).chmod(0o755)
        launched = launch(run_dir=Path(folder) / "run")
        await launched.event("started")
        launched.run_dir.chmod(0o755)
        (launched.run_dir / "control.sock").chmod(0o666)
        done = await asyncio.to_thread(speak_as_nobody, launched)
        await launched.client.call("stop")
        await launched.ended()
    assert '"forbidden"' in done and "65534" in done


def speak_as_nobody(launched: Launched) -> str:
    code = (
        "import os,socket,sys\nos.setgroups([]);os.setgid(65534);os.setuid(65534)\n"
        "s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1])\n"
        "s.sendall(sys.argv[2].encode());print(s.recv(65536).decode())"
    )
    address = str(launched.run_dir / "control.sock")
    argv = [sys.executable, "-c", code, address, line(launched).decode()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    return done.stdout + done.stderr


async def test_modes_of_the_run_dir(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    assert launched.run_dir.stat().st_mode & 0o7777 == 0o2770
    assert (launched.run_dir / "control.sock").stat().st_mode & 0o777 == 0o660
    assert (launched.run_dir / "token").stat().st_mode & 0o007 == 0


async def test_every_probe_answers(launch: Factory) -> None:
    launched = launch("--grandchild", "group", env={"VLLM_API_KEY": "topsecret", "VLLM_LOGGING_LEVEL": "INFO"})

    async def printed() -> bool:
        return "grandchild" in await launched.text()

    await launched.up()
    await launched.wait_for(printed)
    processes = await launched.client.call("probe", name="processes")
    listed = processes["processes"]
    assert isinstance(listed, list) and len(listed) == 2
    assert {"pid", "ppid", "name", "cmdline", "rss_bytes", "state", "cpu_seconds"} <= set(listed[0])
    assert processes["leftovers"] == []
    shm = await launched.client.call("probe", name="shm")
    assert shm["available"] is False or isinstance(shm["size_bytes"], int)
    environment = (await launched.client.call("probe", name="env"))["env"]
    assert isinstance(environment, dict)
    assert environment["VLLM_API_KEY"] == "***" and environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert "HOME" not in environment
    gpu = await launched.client.call("probe", name="gpu")
    assert {"available", "reason", "gpus", "cards", "xids", "trouble"} <= set(gpu)


async def test_end_orphans_leaves_the_running_server_alone(launch: Factory) -> None:
    launched = launch("--grandchild", "group")
    await launched.event("started")
    assert await launched.client.call("end-orphans") == {"ended": []}
    assert (await launched.status())["child_pid"]


async def test_the_log_stream_starts_anywhere_and_goes_on_live(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")

    async def printed() -> bool:
        return "VLLM_USE_DEEP_GEMM" in await launched.text()

    await launched.wait_for(printed)
    whole = (await launched.text()).encode()
    got = b""
    async for chunk in launched.client.log(0):
        assert chunk.offset == len(got) and chunk.dropped == 0
        got += chunk.data
        if len(got) >= len(whole):
            break
    assert got == whole
    later = launched.client.log(5)
    first = await anext(later)
    assert first.offset == 5 and first.data == whole[5 : first.end]
    waiting = asyncio.ensure_future(anext(later))
    await launched.client.call("restart", reason="more output")
    assert (await asyncio.wait_for(waiting, 10)).offset == len(whole)
    await later.aclose()


async def test_event_numbers_go_on_in_the_next_launcher(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    await launched.client.call("stop")
    assert await launched.ended() == 0
    again = launch(run_dir=launched.run_dir)
    event = await again.event("started")
    assert int(str(event["seq"])) > 2
    assert (await again.status())["exit_seq"] == 1
    assert int(str((await again.status())["log_start"])) == 0


async def test_the_client_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(LauncherError) as caught:
        await LauncherClient(tmp_path).call("status")
    assert caught.value.code == "unreachable" and caught.value.remedy

    async def foreign(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answers.pop(0))
        writer.close()

    answers = [b'{"v":2,"id":1,"ok":true,"result":{}}\n', b"<html>\n", b'{"v":1,"ok":true}\n', b""]
    (tmp_path / "token").write_text("t")
    server = await asyncio.start_unix_server(foreign, path=str(tmp_path / "control.sock"))
    for code in ("version", "protocol", "protocol", "unreachable"):
        with pytest.raises(LauncherError) as caught:
            await LauncherClient(tmp_path).call("status")
        assert caught.value.code == code
    server.close()


async def test_a_launcher_that_does_not_answer_is_a_timeout(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    (tmp_path / "token").write_text("t")
    server = await asyncio.start_unix_server(silent, path=str(tmp_path / "control.sock"))
    with pytest.raises(LauncherError) as caught:
        await LauncherClient(tmp_path, timeout=0.2).call("status")
    assert caught.value.code == "timeout"
    server.close()


async def test_a_run_dir_with_a_long_name_works(launch: Factory, tmp_path: Path) -> None:
    launched = launch(run_dir=tmp_path / ("d" * 90) / ("e" * 60))
    await launched.event("started")
    assert (await launched.status())["child_pid"]


def test_log_data_is_base64_of_at_most_one_line() -> None:
    from agent.launch.verbs import LOG_CHUNK_BYTES

    assert len(base64.b64encode(b"x" * LOG_CHUNK_BYTES)) + 200 < 64 * 1024
