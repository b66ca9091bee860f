"""Freeze, dry run, budget, backoff, breaker, several nodes, attach mode, preconditions, memory that does not
come.
"""

from __future__ import annotations

import msgspec

from agent.model import Action, ActionState, Change, IncidentState, Mechanism, Mode, OccupancyFacts, Retry
from agent.remediate import Guard, Policy
from tests.repairs.world import (
    GIB,
    H200,
    NEIGHBOUR_OOM,
    OWN_OOM,
    FakeClock,
    Life,
    agent,
    card,
    cause,
    dead_world,
    known,
    situation,
)

OOM = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
DEAD = cause("engine-dead", retry=Retry.MAY)
OCCUPIED = cause(
    "gpu-memory-occupied",
    facts=OccupancyFacts(
        device="cuda:0",
        free_bytes=20 * GIB,
        total_bytes=80 * GIB,
        utilization=0.9,
        requested_bytes=72 * GIB,
    ),
)


def well(change: Change, n: int) -> Life:
    return Life()


def never_holds(change: Change, n: int) -> Life:
    return Life(dies_after=35.0, of=OOM)


async def test_frozen_proposes_and_does_nothing(tmp_path):
    world = dead_world(well, OOM)
    world.is_frozen = True
    done = await agent(world, tmp_path).repair(OOM)
    assert done.state is IncidentState.UNRESOLVED and "frozen" in (done.note or "")
    assert [it.state for it in done.actions] == [ActionState.PROPOSED]
    assert world.did("restart", "set-overrides") == []


async def test_a_freeze_in_the_middle_stops_the_next_step(tmp_path):
    world = dead_world(never_holds, OOM)

    def freeze() -> None:
        world.is_frozen = world.ended()

    world.on_wait = freeze
    done = await agent(world, tmp_path).repair(OOM)
    assert done.state is IncidentState.UNRESOLVED and "frozen" in (done.note or "")
    assert len(world.did("restart")) == 1


async def test_the_global_dry_run_writes_the_plans_down_and_does_nothing(tmp_path):
    world = dead_world(well, OOM)
    run = agent(world, tmp_path, Policy(dry_run=True))
    done = await run.repair(OOM)
    assert {it.state for it in done.actions} == {ActionState.PROPOSED}
    assert {it.mode for it in done.actions} == {Mode.DRY_RUN}
    assert "dry run" in (done.note or "") and world.did("restart", "set-overrides") == []
    assert not run.remediator.stay_down


async def test_without_a_launcher_everything_is_advice(tmp_path):
    world = dead_world(well, OOM)
    done = await agent(world, tmp_path, hands=False).repair(OOM)
    assert [it.state for it in done.actions] == [ActionState.PROPOSED]
    assert "attached only" in (done.note or "") and world.calls == []


async def test_one_node_of_several_is_never_restarted_alone(tmp_path):
    base = situation(msgspec.structs.replace(H200, nnodes=known(2)))
    world = dead_world(well, DEAD, base=base)
    done = await agent(world, tmp_path).repair(DEAD)
    assert "2 nodes" in (done.note or "") and world.did("restart") == []
    world = dead_world(well, DEAD, base=situation(argv=("vllm", "serve", "m", "--headless")))
    done = await agent(world, tmp_path / "b").repair(DEAD)
    assert "--headless" in (done.note or "") and world.did("restart") == []


async def test_a_fault_that_never_holds_opens_the_breaker_after_its_steps(tmp_path):
    world = dead_world(never_holds, OOM)
    run = agent(world, tmp_path)
    done = await run.repair(OOM)
    assert done.state is IncidentState.UNRESOLVED
    assert [it.state for it in done.actions] == [ActionState.FAILED] * 4
    assert len(world.did("restart")) == 4
    assert run.guard.breaker_open("s") is not None and run.remediator.stay_down
    again = await run.repair(OOM)
    assert "circuit breaker" in (again.note or "") and len(world.did("restart")) == 4


async def test_only_a_person_closes_the_breaker_and_it_survives_the_agent(tmp_path):
    world = dead_world(never_holds, DEAD)
    world.life = lambda change, n: Life(dies_after=35.0, of=DEAD)
    run = agent(world, tmp_path)
    await run.repair(DEAD)
    run.journal.close()
    run = agent(world, tmp_path)
    world.clock.seconds += 10_000
    assert run.guard.breaker_open("s") is not None
    assert run.guard.reset_breaker("s") is True and run.guard.reset_breaker("s") is False
    world.life = well
    assert (await run.repair(DEAD)).state is IncidentState.RESOLVED


async def test_the_budget_ends_in_an_open_breaker(tmp_path):
    world = dead_world(well, DEAD)
    run = agent(world, tmp_path, Policy(budget_actions=2))
    for _ in range(2):
        assert (await run.repair(DEAD)).state is IncidentState.RESOLVED
        world.kill(DEAD)
    third = await run.repair(DEAD)
    assert third.state is IncidentState.UNRESOLVED and "budget of 2" in (third.note or "")
    assert run.guard.breaker_open("s") is not None


async def test_the_budget_counts_within_its_window_and_per_fault(tmp_path):
    world = dead_world(well, DEAD)
    run = agent(world, tmp_path, Policy(budget_actions=1))
    assert (await run.repair(DEAD)).state is IncidentState.RESOLVED
    world.kill(OOM)
    assert (await run.repair(OOM)).state is IncidentState.RESOLVED
    world.clock.seconds += 3700
    world.kill(DEAD)
    assert (await run.repair(DEAD)).state is IncidentState.RESOLVED


async def test_what_the_kernel_killed_for_memory_is_restarted_once(tmp_path):
    killed = cause("host-oom-kill", retry=Retry.MAY)
    world = dead_world(well, killed)
    run = agent(world, tmp_path)
    assert (await run.repair(killed)).state is IncidentState.RESOLVED
    world.kill(killed)
    second = await run.repair(killed)
    assert second.state is IncidentState.UNRESOLVED and "memory limit" in (second.note or "")
    assert len(world.did("restart")) == 1


async def test_repairs_of_one_fault_come_slower(tmp_path):
    world = dead_world(well, DEAD)
    run = agent(world, tmp_path, Policy(backoff_seconds=(0, 7, 9)))
    waited = []
    for _ in range(3):
        begun = world.clock.seconds
        done = await run.repair(DEAD)
        started = next(it for it in run.seen if it.id == done.id and it.actions and it.actions[0].started_at)
        waited.append(round(_moment(started.actions[0]) - (world.clock.epoch.timestamp() + begun)))
        world.kill(DEAD)
    assert waited == [0, 7, 9]


def _moment(action: Action) -> float:
    from agent.model import parse_rfc3339

    assert action.started_at is not None
    return parse_rfc3339(action.started_at).timestamp()


def test_failed_repairs_in_the_window_open_the_breaker(tmp_path):
    world = dead_world(well, DEAD)
    run = agent(world, tmp_path, Policy(breaker_failures=2, breaker_window_seconds=100))
    run.guard.record_failure("s", "one")
    world.clock.seconds += 200
    run.guard.record_failure("s", "two")
    assert run.guard.breaker_open("s") is None
    run.guard.record_failure("s", "three")
    assert "three" in (run.guard.breaker_open("s") or "")
    assert run.guard.breaker_open("other") is None


def test_a_damaged_breaker_record_counts_as_closed(tmp_path):
    run = agent(dead_world(well, DEAD), tmp_path)
    run.journal.kv_set("remediate/breaker/s", "{nonsense")
    assert run.guard.breaker_open("s") is None


async def test_two_incidents_of_one_server_are_pursued_one_after_the_other(tmp_path):
    import asyncio

    world = dead_world(well, DEAD)
    run = agent(world, tmp_path)
    both = await asyncio.gather(run.repair(DEAD), run.repair(DEAD))
    assert [it.state for it in both] == [IncidentState.RESOLVED] * 2
    assert len(world.did("restart")) == 1  # the second found it running


async def test_a_precondition_that_is_gone_right_before_acting_refuses_the_plan(tmp_path):
    settings = msgspec.structs.replace(H200, gpu_memory_utilization=known(0.3), kv_pool_bytes=known(int(35.62 * GIB)))
    neighbour = cause("oom-serving", mechanism=Mechanism.NEIGHBOUR, facts=NEIGHBOUR_OOM)
    readings = iter([card(40.44)] * 2 + [card(12.0)] * 500)
    world = dead_world(well, neighbour, base=situation(settings))
    world.gpus = lambda: (next(readings),)
    done = await agent(world, tmp_path).repair(neighbour)
    assert done.actions[0].state is ActionState.REFUSED
    assert "is needed" in (done.actions[0].outcome or "")
    assert world.did("set-overrides") == []


async def test_memory_that_comes_back_is_waited_for(tmp_path):
    world = dead_world(well, OCCUPIED, served=False)
    world.gpus = lambda: (card(75.0 if world.clock.seconds > 1080 else 20.0, 80.0),)
    done = await agent(world, tmp_path).repair(OCCUPIED)
    assert [(it.action, it.state) for it in done.actions] == [("wait-for-memory", ActionState.VERIFIED)]
    assert world.did("set-overrides") == []


async def test_memory_that_does_not_come_back_is_fitted(tmp_path):
    base = situation(msgspec.structs.replace(H200, gpu_memory_utilization=known(0.9), kv_pool_bytes=None))
    world = dead_world(well, OCCUPIED, served=False, base=base)
    world.gpus = lambda: (card(60.0, 80.0),)
    begun = world.clock.seconds
    done = await agent(world, tmp_path).repair(OCCUPIED)
    assert [(it.action, it.state) for it in done.actions] == [
        ("wait-for-memory", ActionState.FAILED),
        ("oom-fit-neighbour", ActionState.VERIFIED),
    ]
    assert "60.00 GiB free, 72.00 GiB needed" in (done.actions[0].outcome or "")
    assert dict(world.overrides.flags) == {"--gpu-memory-utilization": "0.72"}
    assert world.clock.seconds - begun > 30 and len(world.did("hold")) >= 2


async def test_a_card_that_cannot_be_measured_is_waited_for_and_then_tried(tmp_path):
    world = dead_world(well, OCCUPIED, served=False)
    world.gpus = lambda: ()
    begun = world.clock.seconds
    done = await agent(world, tmp_path).repair(OCCUPIED)
    assert [(it.action, it.state) for it in done.actions] == [("wait-for-memory", ActionState.VERIFIED)]
    assert "cannot be measured" in done.actions[0].why[-1]
    assert world.clock.seconds - begun >= 30


async def test_the_dead_servers_own_memory_is_not_taken_for_a_neighbours(tmp_path):
    settings = msgspec.structs.replace(H200, gpu_memory_utilization=known(0.3), kv_pool_bytes=known(int(35.62 * GIB)))
    neighbour = cause("oom-serving", mechanism=Mechanism.NEIGHBOUR, facts=NEIGHBOUR_OOM)
    world = dead_world(well, neighbour, base=situation(settings))
    died = world.clock.seconds
    world.gpus = lambda: (card(min(40.44, 0.1 + 20 * (world.clock.seconds - died))),)
    done = await agent(world, tmp_path).repair(neighbour)
    assert done.state is IncidentState.RESOLVED
    assert dict(world.overrides.flags) == {"--gpu-memory-utilization": "0.25"}


def test_a_guard_needs_no_memory_of_its_own(tmp_path):
    run = agent(dead_world(well, DEAD), tmp_path)
    run.guard.open_breaker("s", "why")
    assert Guard(run.journal, FakeClock(), Policy()).breaker_open("s") == "why"


async def test_with_no_room_to_fit_the_wait_is_long_and_the_hold_renewed(tmp_path):
    base = situation(msgspec.structs.replace(H200, gpu_memory_utilization=known(0.9), kv_pool_bytes=None))
    world = dead_world(well, OCCUPIED, served=False, base=base)
    freed = world.clock.seconds + 600
    world.gpus = lambda: (card(75.0 if world.clock.seconds > freed else 10.0, 80.0),)
    done = await agent(world, tmp_path).repair(OCCUPIED)
    assert [(it.action, it.state) for it in done.actions] == [("wait-for-memory", ActionState.VERIFIED)]
    assert len(world.did("hold")) >= 29


async def test_a_dry_run_gives_the_dead_server_back_to_the_launcher_at_once(tmp_path):
    world = dead_world(lambda change, n: Life(), DEAD)
    holds: list[float] = []

    async def hold(exit_seq: int, seconds: float) -> None:
        holds.append(seconds)

    world.hold = hold
    done = await agent(world, tmp_path, Policy(dry_run=True)).repair(DEAD)
    assert done.state is IncidentState.UNRESOLVED and world.did("restart") == []
    assert holds[-1] == 0.0
