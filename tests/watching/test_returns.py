"""The watcher was away, or the launcher: what was missed is told once, what is proven is claimed, nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.collect import Scrape
from agent.config import Config, Verify
from agent.model import ActionState, IncidentState, State
from agent.watch.world import ServerSpec
from tests.support.processes import free_port
from tests.watching.conftest import ARGUMENTS, FATAL, OOM, PTXAS, READY, Served
from tests.watching.launcher import FakeLauncher
from tests.watching.server import Answers, serving
from tests.watching.watcher import QUIET, watching


class Away:
    """A launcher and its server, and a watcher that comes and goes."""

    def __init__(self, launcher: FakeLauncher, server: Answers, folder: Path) -> None:
        self.launcher = launcher
        self.server = server
        self.folder = folder
        launcher.url = server.url
        launcher.on_restart = self.serve

    def serve(self) -> None:
        self.launcher.start()
        self.launcher.print(ARGUMENTS + READY)
        self.launcher.ready()

    def watch(self, settings: Config = QUIET):  # type: ignore[no-untyped-def]
        spec = ServerSpec(name="run", run_dir=self.launcher.run_dir)
        return watching(spec, self.folder / "state", settings=settings)


@pytest.fixture
async def away(tmp_path: Path):  # type: ignore[no-untyped-def]
    async with serving() as server, FakeLauncher(tmp_path / "run") as launcher:
        yield Away(launcher, server, tmp_path)


async def test_an_end_while_nobody_watched_is_named_from_the_log_and_the_new_start_is_proven(away: Away) -> None:
    away.serve()
    async with away.watch() as first:
        await first.state(State.SERVING)
    away.launcher.print(PTXAS)
    away.launcher.end(0)
    away.serve()
    async with away.watch() as second:
        incident = await second.closed()
        assert (incident.fault, incident.state) == ("triton-ptxas", IncidentState.RESOLVED)
        assert "by itself" in str(incident.note) and "answered" in str(incident.note)
        assert second.watch.evidence.state() is State.SERVING
    assert away.launcher.asked("restart") == [], "a healthy server was restarted"


@pytest.mark.parametrize("age", [0.0, 3.0, 600.0])
async def test_a_replayed_exit_never_kills_the_start_that_follows_it(away: Away, age: float) -> None:
    away.serve()
    async with away.watch() as first:
        await first.state(State.SERVING)
    away.launcher.end(1, age=age)
    away.serve()
    async with away.watch() as second:
        await second.closed()
        assert second.watch.evidence.state() is State.SERVING
        assert not second.watch.evidence.ended()
    async with away.watch() as third:
        await third.state(State.SERVING)
        await asyncio.sleep(0.3)
        assert len(third.incidents) == 1
    assert away.launcher.asked("restart") == []


async def test_a_server_found_dead_is_repaired(away: Away) -> None:
    away.serve()
    async with away.watch() as first:
        await first.state(State.SERVING)
    away.launcher.print(OOM)
    away.launcher.end(0)
    async with away.watch() as second:
        incident = await second.closed()
        assert incident.fault == "oom-serving" and incident.state is IncidentState.RESOLVED
    assert len(away.launcher.asked("restart")) == 1


async def test_a_death_that_was_handled_is_not_handled_again(away: Away) -> None:
    away.launcher.refusals["restart"] = "breaker-open"
    away.serve()
    async with away.watch() as first:
        await first.state(State.SERVING)
        away.launcher.end(0)
        await first.closed()
    async with away.watch() as second:
        await second.state(State.DEAD)
        await asyncio.sleep(0.3)
        assert len(second.incidents) == 1


async def test_old_lines_of_the_running_start_open_nothing_but_are_evidence(away: Away) -> None:
    away.serve()
    away.launcher.print(FATAL + PTXAS)
    async with away.watch() as watch:
        await watch.state(State.SERVING)
        await watch.until(lambda: watch.watch.log.saw("triton-ptxas"))
        await asyncio.sleep(0.2)
        assert watch.incidents == []


async def test_lines_of_an_earlier_start_are_not_read_for_the_present_one(away: Away) -> None:
    away.serve()
    away.launcher.print(PTXAS)
    away.launcher.end(0)
    away.serve()
    async with away.watch() as watch:
        await watch.state(State.SERVING)
        away.launcher.end(0)
        incident = await watch.closed()
        assert incident.fault == "engine-dead"


async def test_a_watcher_may_come_before_the_launcher(tmp_path: Path) -> None:
    spec = ServerSpec(name="run", run_dir=tmp_path / "run")
    async with serving() as server, watching(spec, tmp_path / "state") as watch:
        await watch.until(lambda: watch.watch.source.trouble)
        assert watch.watch.status()["not_measured"][0]["check"] == "launcher"
        async with FakeLauncher(tmp_path / "run") as launcher:
            away = Away(launcher, server, tmp_path)
            away.serve()
            await watch.state(State.SERVING)
            assert all(one["check"] != "launcher" for one in watch.watch.status()["not_measured"])
    assert watch.said.getvalue().count("waiting for the launcher") == 1


async def test_a_new_launcher_under_a_living_watcher_is_taken_up_where_the_old_one_ended(served: Served) -> None:
    old = served.launcher
    await old.go()
    await served.watch.until(lambda: served.watch.watch.source.trouble)
    async with FakeLauncher(old.run_dir, seq=old.seq, exit_seq=old.exit_seq, log_end=old.log_end) as new:
        away = Away(new, served.server, old.run_dir.parent)
        away.serve()
        await served.watch.until(lambda: served.watch.watch.evidence.start_seq() == 2)
        await served.watch.state(State.SERVING)
        await served.watch.until(lambda: served.watch.watch.log.session.started)
        new.print(PTXAS)
        new.end(0)
        assert (await served.watch.closed()).fault == "triton-ptxas"
        assert len(served.watch.incidents) == 1


async def test_a_run_dir_made_anew_counts_from_one_again(served: Served) -> None:
    old = served.launcher
    old.print("x" * 5000 + "\n")
    for number in range(9):
        old.event("notice", text=f"number {number}")
    await served.watch.until(lambda: "number 8" in served.watch.said.getvalue())
    await served.watch.until(lambda: served.watch.watch.log.offset == old.log_end)
    await old.go()
    async with FakeLauncher(old.run_dir) as new:
        away = Away(new, served.server, old.run_dir.parent)
        away.serve()
        await served.watch.until(lambda: served.watch.watch.evidence.start_seq() == 2)
        await asyncio.sleep(1.3)
        assert served.watch.watch.evidence.start_seq() == 2, "events were taken twice"
        new.end(0)
        assert (await served.watch.closed()).state is IncidentState.RESOLVED


async def test_a_launcher_that_is_gone_for_good_is_said(served: Served) -> None:
    await served.launcher.go()
    await served.watch.until(lambda: served.watch.watch.source.trouble)
    status = served.watch.watch.status()
    assert status["not_measured"][0]["check"] == "launcher"
    assert status["state"] == "serving", "the server answers, whoever owns it"
    served.watch.clock.leap(31)
    await asyncio.sleep(0.2)
    assert served.watch.incidents == []


async def test_launcher_and_server_gone_together_are_told_once_and_taken_up_when_they_return(tmp_path: Path) -> None:
    port, run_dir = free_port(), tmp_path / "run"
    spec = ServerSpec(name="run", run_dir=run_dir)
    async with watching(spec, tmp_path / "state") as watch:
        async with serving(port) as server, FakeLauncher(run_dir) as launcher:
            Away(launcher, server, tmp_path).serve()
            await watch.state(State.SERVING)
            await watch.until(lambda: isinstance(watch.watch.evidence.scrape, Scrape))
        await watch.until(lambda: watch.watch.source.trouble and watch.watch.evidence.refused())
        await asyncio.sleep(0.2)
        assert watch.incidents == [], "a launcher that is restarted is back soon"
        watch.clock.leap(31)
        incident = await watch.closed()
        assert incident.state is IncidentState.UNRESOLVED and "launcher is gone" in str(incident.note)
        watch.clock.leap(31)
        await asyncio.sleep(0.2)
        assert len(watch.incidents) == 1
        async with serving(port) as server, FakeLauncher(run_dir, seq=launcher.seq) as successor:
            Away(successor, server, tmp_path).serve()
            await watch.state(State.SERVING)
            successor.end(1)
            assert (await watch.closed(2)).state is IncidentState.RESOLVED


@pytest.mark.parametrize("state", [ActionState.RUNNING, ActionState.VERIFYING])
async def test_the_agent_dies_in_a_repair_and_its_next_life_ends_it(away: Away, state: ActionState) -> None:
    slow = Config(poll_seconds=0.05, backoff_seconds=(0,), verify=Verify(hold_seconds=0.5, serving_seconds=9))
    away.serve()
    away.launcher.on_restart = (lambda: None) if state is ActionState.RUNNING else away.serve
    async with away.watch(slow) as first:
        await first.state(State.SERVING)
        away.launcher.end(0)
        await first.until(
            lambda: (
                first.incidents
                and first.incidents[0].actions
                and first.incidents[0].actions[0].state in (state, ActionState.VERIFYING)
            )
        )
    away.launcher.on_restart = away.serve
    async with away.watch(slow) as second:
        incident = await second.closed()
        assert incident.state is IncidentState.RESOLVED
        assert len(second.incidents) == 1
        assert "going on with incident" in second.said.getvalue()
    served_again = len(away.launcher.asked("restart"))
    assert served_again == (2 if state is ActionState.RUNNING else 1)


async def test_an_incident_left_open_counts_as_open_and_older_ones_are_closed(away: Away) -> None:
    away.launcher.on_restart = lambda: None
    away.serve()
    async with away.watch() as first:
        await first.state(State.SERVING)
        away.launcher.end(0)
        left = await first.opened()
    async with away.watch() as second:
        await second.until(lambda: second.published)
        assert second.published[0].id == left.id
