"""Unasked exits: judged, recorded, restarted, given up; what a watcher's word changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from agent.errors import LauncherError
from tests.launch.harness import FAKE, Factory, Launched, alive, free_port, until


async def test_exit_zero_that_nobody_asked_for_is_a_failure_and_restarted(launch: Factory) -> None:
    launched = launch("--exit", "0", "--exit-after", "0.1")
    event = await launched.event("exit")
    assert event["asked"] is False
    record = event["exit"]
    assert isinstance(record, dict)
    assert record["code"] == 0 and record["signal"] is None and record["ready_at"] is None
    again = await launched.event("started", after=int(str(event["seq"])))
    waited = float(str(again["at_monotonic"])) - float(record["exited_monotonic"])
    assert 1.9 <= waited < 6, "two seconds for a watcher to answer"
    assert (await launched.status())["failures_in_window"] == 1


async def test_the_exit_event_follows_the_exit_within_milliseconds(launch: Factory) -> None:
    launched = launch("--port", str(free_port()))
    ready = await launched.ready()
    stream = launched.client.events(int(str(ready["seq"])))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.3)
    killed = time.monotonic()
    os.kill(int(str(ready["pid"])), signal.SIGKILL)
    event = await asyncio.wait_for(waiting, 10)
    seen = time.monotonic()
    assert event["kind"] == "exit"
    assert seen - killed < 0.5, "bound for a loaded machine; milliseconds are usual"
    await stream.aclose()


async def test_the_last_lines_come_before_the_exit(launch: Factory) -> None:
    launched = launch("--exit", "3")
    event = await launched.event("exit")
    record = event["exit"]
    assert isinstance(record, dict)
    text = (await launched.text()).encode()
    assert record["log_offset"] >= text.index(b"env VLLM_USE_DEEP_GEMM") > 0


async def test_a_usage_error_ends_the_launcher_with_two(launch: Factory) -> None:
    launched = launch("--exit", "2")
    assert await launched.ended() == 2
    assert len(launched.exits()) == 1, "never retried"


def four_failures(run_dir: Path) -> None:
    document: dict[str, object] = {"v": 1, "event_seq": 7, "exit_seq": 4, "starts": 4}
    document.update(failures=[time.time()] * 4, breaker_open=False)
    (run_dir / "starts.json").write_text(json.dumps(document))


async def test_a_fifth_failure_without_progress_gives_up(launch: Factory, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    four_failures(run_dir)
    launched = launch("--exit", "1")
    assert await launched.ended() == 70
    assert [record["seq"] for record in launched.exits()] == [5]


async def test_with_a_watcher_the_fifth_failure_opens_the_breaker_that_a_person_closes(
    launch: Factory, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    four_failures(run_dir)
    launched = launch("--exit", "1", probe=True)
    breaker = await launched.event("breaker")  # the stream itself is the watcher
    assert breaker["open"] is True
    status = await launched.status()
    assert status["breaker_open"] is True and status["child_pid"] is None
    try:
        await launched.client.call("restart", reason="no")
        raise AssertionError("the breaker is open")
    except LauncherError as error:
        assert error.code == "breaker-open"
    launched.process.send_signal(signal.SIGTERM)
    assert await launched.ended() == 0
    again = launch("--exit", "1", run_dir=run_dir)
    await again.up()
    await asyncio.sleep(0.5)
    assert (await again.status())["breaker_open"] is True, "it survives the launcher"
    assert (await again.status())["child_pid"] is None
    seq = int(str((await again.status())["event_seq"]))
    await again.client.call("reset")
    await again.event("started", after=seq)


async def test_a_hold_delays_the_own_restart_and_restart_ends_it(launch: Factory) -> None:
    launched = launch("--exit", "1", "--exit-after", "0.2")
    event = await launched.event("exit")
    record = event["exit"]
    assert isinstance(record, dict)
    answer = await launched.client.call("hold", exit_seq=record["seq"], seconds=30)
    assert answer["exit_seq"] == record["seq"]
    await asyncio.sleep(2.5)
    status = await launched.status()
    assert status["child_pid"] is None and status["state"] == "repairing"
    begun = time.monotonic()
    await launched.client.call("restart", reason="decided")
    await launched.event("started", after=int(str(event["seq"])))
    assert time.monotonic() - begun < 1.5, "no backoff after the watcher's word"


async def test_an_expired_hold_gives_way_to_the_own_policy(launch: Factory) -> None:
    launched = launch("--exit", "1", "--exit-after", "0.1")
    event = await launched.event("exit")
    await launched.client.call("hold", exit_seq=1, seconds=3)
    again = await launched.event("started", after=int(str(event["seq"])))
    assert float(str(again["at_monotonic"])) - float(str(event["at_monotonic"])) >= 2.9


async def test_a_hold_of_another_exit_is_refused(launch: Factory) -> None:
    launched = launch("--exit", "1", "--exit-after", "0.1")
    await launched.event("exit")
    for seq in (0, 99):
        try:
            await launched.client.call("hold", exit_seq=seq, seconds=5)
            raise AssertionError("refused")
        except LauncherError as error:
            assert error.code == "nothing-to-hold"


async def test_sigterm_straight_to_vllm_is_no_failure(launch: Factory) -> None:
    launched = launch("--term", "vllm", "--port", str(free_port()))
    ready = await launched.ready()
    os.kill(int(str(ready["pid"])), signal.SIGTERM)
    event = await launched.event("exit")
    record = event["exit"]
    assert isinstance(record, dict)
    assert record["reason"] == "stopped-from-outside" and record["asked"] is False
    await launched.event("started", after=int(str(event["seq"])))
    assert (await launched.status())["failures_in_window"] == 0


async def test_a_frozen_launcher_restarts_nothing_until_thawed(launch: Factory) -> None:
    launched = launch("--exit", "1", "--exit-after", "0.5")
    await launched.event("started")
    await launched.client.call("freeze")
    event = await launched.event("exit")
    await asyncio.sleep(3)
    status = await launched.status()
    assert status["frozen"] is True and status["child_pid"] is None
    for verb, args in (("restart", {"reason": "x"}), ("set-overrides", {}), ("end-orphans", {})):
        try:
            await launched.client.call(verb, **args)
            raise AssertionError(verb)
        except LauncherError as error:
            assert error.code == "frozen"
    await launched.client.call("thaw")
    await launched.event("started", after=int(str(event["seq"])))


async def _grandchild(launched: Launched) -> int:
    async def printed() -> bool:
        return "grandchild" in await launched.text()

    await launched.wait_for(printed)
    return int((await launched.text()).split("grandchild ")[1].split()[0])


async def test_a_grandchild_that_survives_is_gone_before_the_next_start(launch: Factory) -> None:
    launched = launch("--grandchild", "group", "--port", str(free_port()))
    ready = await launched.ready()
    pid = await _grandchild(launched)
    os.kill(int(str(ready["pid"])), signal.SIGKILL)
    event = await launched.event("exit")
    assert alive(pid)
    await launched.event("started", after=int(str(event["seq"])))
    assert not alive(pid)


async def test_kill_9_of_the_launcher_leaves_nothing(launch: Factory) -> None:
    launched = launch("--grandchild", "session", "--port", str(free_port()))
    ready = await launched.ready()
    server, grandchild = int(str(ready["pid"])), await _grandchild(launched)
    launched.process.kill()
    await until(lambda: not alive(server) and not alive(grandchild))
    again = launch("--port", str(free_port()), run_dir=launched.run_dir)
    await again.event("ready", after=int(str(ready["seq"])))
    assert (await again.status())["exit_seq"] == 0


async def test_a_killed_guard_is_replaced(launch: Factory) -> None:
    launched = launch()
    await launched.event("started")
    pid = int(str((await launched.status())["child_pid"]))

    def guards() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                stat = (entry / "stat").read_text() if (entry / "stat").exists() else ""
                if "(agent-guard)" in stat and stat.split()[3] == str(launched.process.pid):
                    found.append(int(entry.name))
        return found

    await until(lambda: len(guards()) == 1)
    (old,) = guards()
    os.kill(old, signal.SIGKILL)
    await until(lambda: guards() not in ([], [old]))
    launched.process.kill()
    await until(lambda: not alive(pid))


async def test_a_port_that_another_server_holds_does_not_make_ready(launch: Factory, tmp_path: Path) -> None:
    port = free_port()
    first = launch("--port", str(port))
    await first.ready()
    # The second never listens; its address is the first one's.
    command = [sys.executable, str(FAKE), f"--port={port}", "--exit", "1", "--exit-after", "2.5"]
    second = launch(command=command, run_dir=tmp_path / "other")
    event = await second.event("exit")
    record = event["exit"]
    assert isinstance(record, dict)
    assert record["ready_at"] is None


@pytest.mark.parametrize("first_line", ["#!/nonexistent/python3", "\0not a program"])
async def test_a_program_that_cannot_be_executed_is_an_exit_like_any_other(
    launch: Factory, tmp_path: Path, first_line: str
) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"{first_line}\n")
    script.chmod(0o755)
    launched = launch(command=[str(script), "serve", "MODEL"])
    await launched.event("exit")
    second = await launched.event("started", after=2)
    assert second["restarts"] == 1
    assert launched.exits()[0]["code"] == 127 and "cannot be run" in await launched.text()
    await launched.client.call("stop")
    assert await launched.ended() == 0
    assert "Traceback" not in launched.stderr_path.read_text()


async def test_a_usage_error_is_not_held_by_a_watcher(launch: Factory) -> None:
    launched = launch("--exit", "2")
    exit_event = await launched.event("exit")
    record = exit_event["exit"]
    assert isinstance(record, dict)
    with pytest.raises(LauncherError, match="refused its own command line"):
        await launched.client.call("hold", exit_seq=record["seq"], seconds=60)
    assert await launched.ended() == 2
