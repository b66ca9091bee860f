"""What is done before a restart: leftovers are ended, memory is waited for, and everything is asked again after it."""

from __future__ import annotations

import msgspec
import pytest

from agent.model import ActionState, Change, IncidentState, Mechanism, OccupancyFacts, State
from tests.repairs.world import GIB, H200, Life, World, agent, card, cause, dead_world, known, situation

FACTS = OccupancyFacts(
    device="cuda:0", free_bytes=20 * GIB, total_bytes=80 * GIB, utilization=0.9, requested_bytes=72 * GIB
)
ORPHAN = cause("gpu-memory-occupied", mechanism=Mechanism.ORPHAN, facts=FACTS)
OCCUPIED = cause("gpu-memory-occupied", facts=FACTS)
BASE = situation(msgspec.structs.replace(H200, gpu_memory_utilization=known(0.9), kv_pool_bytes=None))


def well(change: Change, n: int) -> Life:
    return Life()


def occupied(of=OCCUPIED, *, free: float = 20.0) -> World:
    world = dead_world(well, of, served=False, base=BASE)
    world.gpus = lambda: (card(free, 80.0),)
    return world


async def test_leftovers_in_the_launchers_subtree_are_ended_before_the_start(tmp_path):
    world = occupied(ORPHAN)
    world.orphans = (4242,)
    done = await agent(world, tmp_path).repair(ORPHAN)
    assert [(it.action, it.state) for it in done.actions] == [("end-orphans", ActionState.VERIFIED)]
    assert [verb for verb, _ in world.did("end-orphans", "restart")] == ["end-orphans", "restart"]


async def test_a_holder_outside_the_subtree_is_nobodys_to_end_and_is_waited_for_instead(tmp_path):
    world = occupied(ORPHAN)
    freed = world.clock.seconds + 25
    world.gpus = lambda: (card(75.0 if world.clock.seconds > freed else 20.0, 80.0),)
    done = await agent(world, tmp_path).repair(ORPHAN)
    assert [(it.action, it.state) for it in done.actions] == [
        ("end-orphans", ActionState.REFUSED),
        ("wait-for-memory", ActionState.VERIFIED),
    ]
    assert "launcher's own subtree" in (done.actions[0].outcome or "")
    assert len(world.did("restart")) == 1 and done.state is IncidentState.RESOLVED


@pytest.mark.parametrize("what", ["freeze", "stop", "breaker"])
async def test_what_changed_during_the_wait_is_asked_again_before_the_restart(tmp_path, what):
    world = occupied()
    run = agent(world, tmp_path)
    begun = world.clock.seconds

    def reading() -> tuple:
        if world.clock.seconds - begun > 20:
            world.is_frozen = what == "freeze"
            world.asked = State.STOPPED if what == "stop" else None
            if what == "breaker":
                run.guard.open_breaker("s", "by hand")
            return (card(75.0, 80.0),)
        return (card(20.0, 80.0),)

    world.gpus = reading
    done = await run.repair(OCCUPIED)
    assert done.state is IncidentState.UNRESOLVED and world.did("restart") == []
    assert {"freeze": "frozen", "stop": "a person stopped", "breaker": "by hand"}[what] in (done.note or "")


async def test_a_launcher_that_started_it_during_the_wait_is_not_asked_again(tmp_path):
    world = occupied()
    begun = world.clock.seconds

    def reading() -> tuple:
        if world.clock.seconds - begun > 20 and world.starts == 1:
            world.begin()
        return (card(20.0, 80.0),)

    world.gpus = reading
    done = await agent(world, tmp_path).repair(OCCUPIED)
    assert done.state is IncidentState.RESOLVED and world.did("restart") == []
    assert [it.state for it in done.actions] == [ActionState.VERIFIED]


async def test_a_person_who_stops_the_server_is_not_waited_past(tmp_path):
    world = occupied(free=8.0)
    begun = world.clock.seconds

    def reading() -> tuple:
        world.asked = State.STOPPED if world.clock.seconds - begun > 30 else None
        return (card(8.0, 80.0),)

    world.gpus = reading
    await agent(world, tmp_path).repair(OCCUPIED)
    assert world.clock.seconds - begun < 60 and world.did("restart") == []
