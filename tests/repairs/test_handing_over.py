"""The end that a person must take up: the server stays down with an open breaker, and the note says what to type."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agent.model import ActionState, CacheFacts, Change, EffectiveSettings, IncidentState, Mechanism, Mode, Retry
from agent.remediate import Policy
from tests.repairs.world import GIB, H200, MODES, OWN_OOM, Life, agent, card, cause, dead_world, known, situation

OOM = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
DEAD = cause("engine-dead", retry=Retry.MAY)
INVALID = cause("config-invalid")
SMALL = cause(
    "kv-cache-too-small",
    facts=CacheFacts(max_model_len=8192, needed_bytes=4 * GIB, available_bytes=GIB, estimated_max_model_len=2050),
)
FLOOR = EffectiveSettings(vllm_version="0.32.0+cpu", max_num_seqs=known(2), max_num_batched_tokens=known(512))


def well(change: Change, n: int) -> Life:
    return Life()


def never_holds(change: Change, n: int) -> Life:
    return Life(dies_after=35.0, of=OOM)


def of_the_cpu_build() -> object:
    return situation(FLOOR, vllm_version="0.32.0+cpu")


async def test_at_the_floor_the_breaker_opens_and_a_reset_is_enough(tmp_path):
    world = dead_world(never_holds, OOM, base=of_the_cpu_build())
    run = agent(world, tmp_path, Policy(breaker_failures=9))
    done = await run.repair(OOM)
    assert done.state is IncidentState.UNRESOLVED and len(world.did("restart")) == 1
    assert "oom-serving" in (run.guard.breaker_open("s") or "") and run.remediator.stay_down
    note = done.note or ""
    assert "DOWN and stays down" in note and "batch is at its floor (1 sequence" in note
    assert "max-num-seqs 2 -> 1 (did not hold" in note
    assert f"agent incident {done.id}" in note and "`agent breaker reset s` starts it again" in note
    run.guard.reset_breaker("s")
    assert not run.remediator.stay_down


async def test_the_breaker_of_a_server_that_is_kept_down_outlives_the_agent(tmp_path):
    world = dead_world(well, INVALID, served=False)
    run = agent(world, tmp_path)
    done = await run.repair(INVALID)
    assert world.did("restart") == [] and run.remediator.stay_down
    assert "Change the setting that vLLM names" in (done.note or "") and "Nothing was changed" in (done.note or "")
    run.journal.close()
    assert agent(world, tmp_path).remediator.stay_down


async def test_a_denied_start_stays_down_and_is_asked_for_again_after_a_reset(tmp_path):
    world = dead_world(well, SMALL, served=False)
    run = agent(world, tmp_path)
    first = asyncio.create_task(run.repair(SMALL))
    await answered(run, allow=False)
    done = await first
    assert run.remediator.stay_down and "(denied)" in (done.note or "")
    assert run.guard.reset_breaker("s") and not run.remediator.stay_down
    second = asyncio.create_task(run.repair(SMALL))
    await answered(run, allow=True)
    assert (await second).state is IncidentState.RESOLVED


async def answered(run, *, allow: bool) -> None:
    for _ in range(5000):
        newest = run.seen[-1] if run.seen else None
        waits = [it for it in newest.actions if it.state is ActionState.AWAITING_APPROVAL] if newest else []
        if waits:
            (run.remediator.approve if allow else run.remediator.deny)(waits[0].id, "ada")
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing waits")


async def test_a_restart_that_is_switched_off_is_the_launchers_again(tmp_path):
    modes = {**MODES, "restart": Mode.OFF}
    world = dead_world(well, DEAD, base=situation(modes=modes))
    run = agent(world, tmp_path)
    done = await run.repair(DEAD)
    assert run.guard.breaker_open("s") is None and not run.remediator.stay_down
    assert "the launcher starts it again by its own policy" in (done.note or "")


@pytest.mark.parametrize("policy", [Policy(dry_run=True), Policy()])
async def test_what_was_only_looked_at_opens_no_breaker(tmp_path, policy):
    world = dead_world(well, INVALID, served=False)
    world.is_frozen = not policy.dry_run
    run = agent(world, tmp_path, policy)
    done = await run.repair(INVALID)
    assert run.guard.breaker_open("s") is None
    assert ("`agent thaw`" in (done.note or "")) is world.is_frozen


async def test_without_a_launcher_no_breaker_and_no_command_is_named_that_cannot_help(tmp_path):
    world = dead_world(well, OOM)
    run = agent(world, tmp_path, hands=False)
    done = await run.repair(OOM)
    note = done.note or ""
    assert "attached only" in note and "breaker reset" not in note and "agent thaw" not in note
    assert "start the server again where it was started" in note
    assert "Nothing was changed. Not done: " in note and "(proposed only)" in note


async def test_the_note_reads_state_then_attempts_then_numbered_steps(tmp_path):
    world = dead_world(never_holds, OOM)
    done = await agent(world, tmp_path).repair(OOM)
    lines = (done.note or "").splitlines()
    assert lines[0].startswith("The server is DOWN") and lines[1].startswith("Tried: max-num-seqs 1024 -> 512")
    assert [line[:3] for line in lines[2:]] == [f"{n}. " for n in range(1, len(lines) - 1)]
    assert "--max-num-seqs (now " in lines[3] and "`agent breaker reset s`" in lines[-1]
    assert all(line.endswith(".") and ".." not in line for line in lines)


async def test_equal_attempts_are_told_once_with_their_number(tmp_path):
    world = dead_world(lambda change, n: Life(dies_after=35.0, of=DEAD), DEAD)
    done = await agent(world, tmp_path).repair(DEAD)
    tried = (done.note or "").splitlines()[1]
    number = sum(1 for it in done.actions if it.state is ActionState.FAILED)
    assert number > 1 and tried.startswith(f"Tried: {number} times restart with the same command (did not hold")
    assert "attempt" not in tried


async def test_a_card_that_never_rests_is_given_up_and_not_planned_for_ever(tmp_path):
    settings = msgspec.structs.replace(H200, gpu_memory_utilization=known(0.5), kv_pool_bytes=None)
    neighbour = cause("oom-serving", mechanism=Mechanism.NEIGHBOUR)
    modes = {**MODES, "wait-for-memory": Mode.OFF, "restart": Mode.OFF}
    world = dead_world(well, neighbour, base=situation(settings, modes=modes))
    reads = iter(range(10_000))

    def restless() -> tuple:
        turn = next(reads)
        return (card(5.0 if turn % 3 == 2 else 60.0 - 1.5 * (turn // 3)),)

    world.gpus = restless
    done = await agent(world, tmp_path).repair(neighbour)
    assert done.state is IncidentState.UNRESOLVED
    assert sum(1 for it in done.actions if it.state is ActionState.REFUSED) == 6
