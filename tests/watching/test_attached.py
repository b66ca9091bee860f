"""Nothing wraps the server: its answers and its files are all there is to see of deaths and returns."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.config import Config
from agent.model import ActionState, IncidentState, State
from agent.watch.world import ServerSpec
from tests.support.processes import free_port
from tests.watching.conftest import ARGUMENTS, DEAD, OOM, PTXAS, READY
from tests.watching.server import serving
from tests.watching.watcher import watching

FAST = Config(poll_seconds=0.05)
SHUTDOWN = "(APIServer pid=7) INFO 11-30 16:12:41 [launcher.py:254] [shutdown] API server: shutdown triggered\n"


async def test_a_death_without_a_log_is_told_once_and_its_return_ends_nothing_twice(tmp_path: Path) -> None:
    port = free_port()
    spec = ServerSpec(name="chat", url=f"http://127.0.0.1:{port}")
    async with watching(spec, tmp_path, settings=FAST) as watch:
        for deaths in (1, 2):
            async with serving(port):
                await watch.state(State.SERVING)
            await watch.state(State.DEAD)
            incident = await watch.closed(deaths)
            assert incident.fault == "engine-dead"
            assert {action.state for action in incident.actions} <= {ActionState.PROPOSED}
        async with serving(port):
            await watch.state(State.SERVING)
            assert len(watch.incidents) == 2
            assert watch.watch.evidence.start_seq() == 3


async def test_each_death_is_named_from_its_own_lines(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "vllm.log"
    spec = ServerSpec(name="chat", url=f"http://127.0.0.1:{port}", logs=(log,))
    async with watching(spec, tmp_path / "state", settings=FAST) as watch:
        async with serving(port):
            log.write_text(ARGUMENTS + READY)
            await watch.state(State.SERVING)
            with log.open("a") as file:
                file.write(OOM + DEAD)
        assert (await watch.closed()).fault == "oom-serving"
        await watch.state(State.DEAD)
        with log.open("a") as file:
            file.write(ARGUMENTS + READY)
        async with serving(port):
            await watch.state(State.SERVING)
        assert (await watch.closed(2)).fault == "engine-dead", "the first death's line explained the second"


async def test_a_stop_that_its_log_calls_asked_is_no_death(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "vllm.log"
    spec = ServerSpec(name="chat", url=f"http://127.0.0.1:{port}", logs=(log,))
    async with watching(spec, tmp_path / "state", settings=FAST) as watch:
        async with serving(port):
            log.write_text(ARGUMENTS + READY)
            await watch.state(State.SERVING)
            with log.open("a") as file:
                file.write(SHUTDOWN)
            await asyncio.sleep(0.2)
        await watch.state(State.DEAD)
        await asyncio.sleep(0.2)
        assert watch.incidents == []
        with log.open("a") as file:
            file.write(ARGUMENTS + READY)
        async with serving(port):
            await watch.state(State.SERVING)
            with log.open("a") as file:
                file.write(OOM + DEAD)
        assert (await watch.closed()).fault == "oom-serving", "the old stop hid the next death"


async def test_what_a_file_held_before_is_no_news_while_the_server_serves(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(READY + OOM + DEAD + READY)
    async with serving() as server:
        spec = ServerSpec(name="chat", url=server.url, logs=(log,))
        async with watching(spec, tmp_path / "state", settings=FAST) as watch:
            await watch.state(State.SERVING)
            await asyncio.sleep(0.4)
            assert watch.incidents == []


async def test_a_server_found_dead_is_named_from_its_file(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(ARGUMENTS + READY + OOM + DEAD)
    spec = ServerSpec(name="chat", url=f"http://127.0.0.1:{free_port()}", logs=(log,))
    async with watching(spec, tmp_path / "state", settings=FAST) as watch:
        incident = await watch.closed()
        assert incident.fault == "oom-serving" and incident.state is IncidentState.UNRESOLVED
        await asyncio.sleep(0.3)
        assert len(watch.incidents) == 1


async def test_a_wrong_port_is_unknown_and_no_incident(tmp_path: Path) -> None:
    spec = ServerSpec(name="chat", url=f"http://127.0.0.1:{free_port()}")
    async with watching(spec, tmp_path, settings=FAST) as watch:
        await watch.until(lambda: "refused" in watch.watch.evidence.standing.reason)
        await asyncio.sleep(0.2)
        assert watch.watch.evidence.state() is State.UNKNOWN and watch.incidents == []


async def test_files_written_at_once_are_read_line_by_line(tmp_path: Path) -> None:
    """Half a line in one file must not be glued to a line of the other."""
    one, two = tmp_path / "api.log", tmp_path / "engine.log"
    one.write_text("")
    two.write_text("")
    spec = ServerSpec(name="chat", logs=(one, two))
    async with watching(spec, tmp_path / "state", settings=FAST) as watch:
        await watch.until(watch.watch.source.caught_up)
        with one.open("a") as first, two.open("a") as second:
            for cut in range(10, 60, 10):
                first.write(READY[: cut // 2])
                first.flush()
                second.write(PTXAS)
                second.flush()
                first.write(READY[cut // 2 :])
                first.flush()
        await watch.until(lambda: watch.watch.log.session.lines >= 10)
        assert watch.watch.log.session.lines == 10
        assert watch.watch.log.saw("triton-ptxas")


async def test_a_missing_log_file_is_said(tmp_path: Path) -> None:
    async with serving() as server:
        spec = ServerSpec(name="chat", url=server.url, logs=(tmp_path / "none.log",))
        async with watching(spec, tmp_path / "state", settings=FAST) as watch:
            await watch.until(lambda: any(one["check"] == "log" for one in watch.watch.status()["not_measured"]))
