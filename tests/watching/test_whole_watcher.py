"""Several servers in one watcher: orders reach all of them, a reload counts at once, the end is clean."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.config import Config, load
from agent.errors import AgentError, ConfigError, NotFoundError
from agent.journal import Journal
from agent.model import SystemClock
from agent.watch.service import Watcher
from agent.watch.specs import CommandLine, settings_of, specs_of
from tests.support.processes import free_port
from tests.watching.launcher import FakeLauncher
from tests.watching.server import serving


class Running:
    """A whole watcher in this process, from a configuration file."""

    def __init__(self, file: Path, watcher: Watcher, said: io.StringIO, task: asyncio.Task[int]) -> None:
        self.file, self.watcher, self.said, self.task = file, watcher, said, task

    def servers(self) -> dict[str, dict[str, object]]:
        return {str(one["name"]): one for one in self.watcher.status()["servers"]}

    async def until_states(self, **states: str) -> None:
        deadline = time.monotonic() + 10
        while (seen := {name: self.servers()[name]["state"] for name in states}) != states:
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.01)

    async def reload(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)


@asynccontextmanager
async def running(folder: Path, text: str) -> AsyncIterator[Running]:
    file = folder / "agent.yaml"
    file.write_text(f"listen: 127.0.0.1:{free_port()}\nstate_dir: {folder}/state\npoll_seconds: 0.05\n{text}")
    given = CommandLine(config=file)
    settings = settings_of(given, {})
    clock, said = SystemClock(), io.StringIO()
    with Journal.open(Path(settings.state_dir), clock) as journal:
        watcher = Watcher(settings, specs_of(given, settings, {}), journal, clock, said)
        task = asyncio.create_task(watcher.run(lambda: settings_of(given, {})))
        await asyncio.sleep(0.05)
        try:
            yield Running(file, watcher, said, task)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(task, 10) == 0
    assert "Traceback" not in said.getvalue() and "failed and is begun again" not in said.getvalue()


async def test_a_launched_and_an_attached_server_are_watched_frozen_and_thawed_together(tmp_path: Path) -> None:
    async with serving() as one, serving() as two, FakeLauncher(tmp_path / "run") as launcher:
        launcher.url = one.url
        launcher.start()
        launcher.ready()
        servers = f"servers: [{{name: owned, run_dir: {launcher.run_dir}}}, {{name: bare, url: '{two.url}'}}]\n"
        async with running(tmp_path, servers) as run:
            await run.until_states(owned="serving", bare="serving")
            await run.watcher.freeze("test")
            assert run.watcher.status()["frozen"] is True and (launcher.run_dir / "freeze").exists()
            await run.watcher.thaw("test")
            await asyncio.sleep(0.1)
            assert run.watcher.status()["frozen"] is False


async def test_a_server_whose_launcher_is_away_keeps_no_order_from_the_others(tmp_path: Path) -> None:
    async with serving() as one, FakeLauncher(tmp_path / "b") as launcher:
        launcher.url = one.url
        launcher.start()
        launcher.ready()
        servers = f"servers: [{{name: a, run_dir: {tmp_path}/a}}, {{name: b, run_dir: {launcher.run_dir}}}]\n"
        async with running(tmp_path, servers) as run:
            await run.until_states(a="unknown", b="serving")
            with pytest.raises(AgentError, match="a: no launcher answers"):
                await run.watcher.freeze("test")
            assert launcher.asked("freeze") == [{}]
            with pytest.raises(AgentError, match="a: "):
                await run.watcher.reset_breaker(None, "test")
            assert launcher.asked("reset") == [{}]
            with pytest.raises(NotFoundError):
                await run.watcher.reset_breaker("nobody", "test")


async def test_a_reload_counts_at_once_and_says_what_it_cannot_change(tmp_path: Path) -> None:
    async with serving() as one, running(tmp_path, f"servers: [{{name: bare, url: '{one.url}'}}]\n") as run:
        text = run.file.read_text()
        run.file.write_text(text + "dry_run: true\nslack: {enabled: false}\n")
        await run.reload()
        said = run.said.getvalue()
        assert "configuration read again" in said and "`slack` has changed" in said
        assert run.watcher._guard.policy.dry_run is True
        run.file.write_text(text + "no_such_key: 1\n")
        await run.reload()
        assert "the old one stays" in run.said.getvalue()
        assert run.watcher._guard.policy.dry_run is True


def test_a_broken_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("servers: [{name: a}]\n")
    with pytest.raises(ConfigError):
        load(file, {})
    assert Config().servers == ()
