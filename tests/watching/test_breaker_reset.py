"""A breaker that is open keeps the server down; the person who closes it gets the server back, in every case."""

from __future__ import annotations

import asyncio

import pytest

from agent.model import IncidentState, State
from tests.watching.conftest import DEAD, Served
from tests.watching.watcher import watching

REASON = "oom-serving: no remedy held and none is left"


def trip(served: Served) -> None:
    served.watch.watch._world.guard.open_breaker("run", REASON)


async def reset(served: Served) -> None:
    served.watch.watch._world.guard.reset_breaker("run")
    await served.watch.watch.after_reset()


async def test_a_dead_server_is_held_until_the_reset_and_then_started_once(served: Served) -> None:
    trip(served)
    served.launcher.print(DEAD)
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.UNRESOLVED and "agent breaker reset run" in (incident.note or "")
    held = len(served.launcher.asked("hold"))
    served.watch.clock.leap(30)
    await served.watch.until(lambda: len(served.launcher.asked("hold")) > held)
    assert served.launcher.asked("restart") == []
    assert all(float(str(call["seconds"])) > 0 for call in served.launcher.asked("hold"))
    await reset(served)
    await served.watch.state(State.SERVING)
    assert len(served.launcher.asked("restart")) == 1 and len(served.launcher.asked("reset")) == 1


async def test_a_launcher_that_starts_it_by_its_own_reset_is_not_asked_twice(served: Served) -> None:
    trip(served)
    served.launcher.end(0)
    await served.watch.closed()
    status = served.launcher.status
    served.launcher.status = lambda: {**status(), "breaker_open": True}  # type: ignore[method-assign]
    await reset(served)
    assert len(served.launcher.asked("reset")) == 1 and served.launcher.asked("restart") == []


async def test_a_process_whose_engine_is_dead_is_restarted_by_the_reset(served: Served) -> None:
    trip(served)
    served.server.health = 503
    await served.watch.state(State.DEAD)
    await served.watch.opened()
    served.watch.clock.leap(31)
    await served.watch.closed()
    for _ in range(3):  # it stays dead for long: still one incident, not one every half minute
        served.watch.clock.leap(31)
        await asyncio.sleep(0.2)
    assert len(served.watch.incidents) == 1 and served.launcher.asked("restart") == []

    def come_back() -> None:
        served.server.health = 200
        served.launcher.end(0, asked=True, reason="asked: restart")
        served.come_back()

    served.launcher.on_restart = come_back
    await reset(served)
    await served.watch.state(State.SERVING)
    assert len(served.launcher.asked("restart")) == 1


async def test_a_server_that_serves_is_not_restarted_by_a_reset(served: Served) -> None:
    trip(served)
    await reset(served)
    assert served.launcher.asked("restart") == []


@pytest.mark.parametrize("dead", [True, False])
async def test_whoever_starts_the_agent_again_hears_of_the_open_breaker(served: Served, tmp_path, dead: bool) -> None:
    async with watching(served.spec, tmp_path / "other") as first:
        first.watch._world.guard.open_breaker("run", REASON)
    if dead:
        served.launcher.end(0)
    async with watching(served.spec, tmp_path / "other") as again:
        await again.until(lambda: "agent breaker reset run" in again.said.getvalue())
        assert REASON in again.said.getvalue()


@pytest.mark.parametrize("changed", [True, False])
async def test_only_another_command_closes_the_breaker_of_the_old_one(served: Served, tmp_path, changed: bool) -> None:
    status, command = served.launcher.status, "aaaa"
    served.launcher.status = lambda: {**status(), "command_sha256": command}  # type: ignore[method-assign]
    await served.watch.watch.source.probe()
    served.watch.watch._see_command()
    served.watch.watch._world.guard.open_breaker("run", REASON)
    served.watch.watch._see_command()
    assert served.watch.watch._world.guard.breaker_open("run") is not None
    command = "bbbb" if changed else "aaaa"
    await served.watch.watch.source.probe()
    served.watch.watch._see_command()
    assert (served.watch.watch._world.guard.breaker_open("run") is None) is changed
    assert ("command has changed" in served.watch.said.getvalue()) is changed
