"""The agent dies at every point of a repair and comes back: nothing is done twice, nothing is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from agent.model import Action, ActionState, CacheFacts, Change, Incident, IncidentState, Mechanism, Retry
from tests.repairs.world import GIB, OWN_OOM, Agent, Life, World, agent, cause, dead_world

OOM = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
DEAD = cause("engine-dead", retry=Retry.MAY)
SMALL = cause(
    "kv-cache-too-small",
    facts=CacheFacts(max_model_len=8192, needed_bytes=4 * GIB, available_bytes=GIB, estimated_max_model_len=2048),
)


class Killed(BaseException):
    """The agent is gone at once, as by SIGKILL."""


def well(change: Change, n: int) -> Life:
    return Life()


async def die_at(run: Agent, of, state: ActionState, nth: int = 1) -> Incident:
    """Pursue until the nth action reaches ``state``, then die right after the journal has it."""
    observed = run.remediator._on_change

    def deadly(incident: Incident) -> None:
        observed(incident)
        if len(incident.actions) >= nth and incident.actions[nth - 1].state is state:
            raise Killed

    run.remediator._on_change = deadly
    with pytest.raises(Killed):
        await run.repair(of)
    [left] = run.journal.open_incidents()
    run.journal.close()
    return left


async def reborn(world: World, folder, left: Incident) -> tuple[Agent, Incident]:
    run = agent(world, folder)
    return run, await run.remediator.resume(left, world.situation)


async def test_killed_while_proving_goes_on_proving(tmp_path):
    world = dead_world(well, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.VERIFYING)
    _, done = await reborn(world, tmp_path, left)
    assert done.state is IncidentState.RESOLVED
    assert [it.state for it in done.actions] == [ActionState.VERIFIED]
    assert len(world.did("restart")) == 1 and len(world.did("set-overrides")) == 1


async def test_killed_before_the_launcher_was_asked_plans_anew_and_acts_once(tmp_path):
    world = dead_world(well, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.RUNNING)
    _, done = await reborn(world, tmp_path, left)
    assert [(it.action, it.state) for it in done.actions] == [
        ("oom-reduce-batch", ActionState.INTERRUPTED),
        ("oom-reduce-batch", ActionState.VERIFIED),
    ]
    assert done.state is IncidentState.RESOLVED
    assert len(world.did("restart")) == 1


async def test_killed_after_the_launcher_was_asked_but_before_the_journal_knew(tmp_path):
    world = dead_world(well, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.RUNNING)
    [action] = left.actions
    await world.set_overrides(action.delta, left.id)
    await world.restart("as asked", left.id)
    _, done = await reborn(world, tmp_path, left)
    assert [it.state for it in done.actions] == [ActionState.VERIFIED]
    assert len(world.did("restart")) == 1


async def test_killed_between_deciding_and_acting_acts_once(tmp_path):
    world = dead_world(well, DEAD)
    left = await die_at(agent(world, tmp_path), DEAD, ActionState.APPROVED)
    _, done = await reborn(world, tmp_path, left)
    assert [it.state for it in done.actions] == [ActionState.VERIFIED]
    assert len(world.did("restart")) == 1


async def test_killed_while_proving_a_step_that_then_fails_goes_on_stepping(tmp_path):
    def life(change: Change, n: int) -> Life:
        held = int(dict(change.flags).get("--max-num-seqs", 1024)) <= 256
        return Life(dies_after=None if held else 45.0, of=OOM)

    world = dead_world(life, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.VERIFYING)
    _, done = await reborn(world, tmp_path, left)
    assert [it.state for it in done.actions] == [ActionState.FAILED, ActionState.VERIFIED]
    assert dict(world.overrides.flags)["--max-num-seqs"] == "256"


async def test_a_roll_back_works_after_a_restart_of_the_agent(tmp_path):
    fragmented = cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=OWN_OOM)

    def life(change: Change, n: int) -> Life:
        return Life(dies_after=45.0 if change.env else None, of=fragmented)

    world = dead_world(life, fragmented)
    left = await die_at(agent(world, tmp_path), fragmented, ActionState.VERIFYING)
    _, done = await reborn(world, tmp_path, left)
    assert [it.state for it in done.actions] == [ActionState.ROLLED_BACK, ActionState.VERIFIED]
    assert world.overrides.env == {}


async def test_an_approval_outlives_the_agent(tmp_path):
    world = dead_world(well, SMALL, served=False)
    left = await die_at(agent(world, tmp_path), SMALL, ActionState.AWAITING_APPROVAL)
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.remediator.resume(left, world.situation))
    [action] = left.actions
    decided: Action | None = None
    for _ in range(200):
        await asyncio.sleep(0)
        try:
            decided = run.remediator.approve(action.id, "ada")
            break
        except Exception:
            continue
    assert decided is not None
    done = await task
    assert [it.state for it in done.actions] == [ActionState.VERIFIED]
    assert dict(world.overrides.flags) == {"--max-model-len": "2048"}
    assert len(world.did("restart")) == 1


async def test_an_approval_that_expired_meanwhile_is_not_done(tmp_path):
    world = dead_world(well, SMALL, served=False)
    left = await die_at(agent(world, tmp_path), SMALL, ActionState.AWAITING_APPROVAL)
    world.clock.seconds += 4000
    _, done = await reborn(world, tmp_path, left)
    assert done.actions[0].state is ActionState.EXPIRED and world.did("restart") == []


async def test_a_server_that_the_launcher_brought_back_meanwhile_is_proven_not_restarted(tmp_path):
    world = dead_world(well, DEAD)
    first = agent(world, tmp_path)
    left = first.incident(DEAD)
    first.journal.close()
    world.begin()
    world.clock.seconds += 40
    _, done = await reborn(world, tmp_path, left)
    assert done.state is IncidentState.RESOLVED and "by itself" in (done.note or "")
    assert done.actions == () and world.did("restart") == []


async def test_an_open_incident_of_a_dead_server_is_pursued(tmp_path):
    world = dead_world(well, DEAD)
    first = agent(world, tmp_path)
    left = first.incident(DEAD)
    first.journal.close()
    _, done = await reborn(world, tmp_path, left)
    assert done.state is IncidentState.RESOLVED and len(world.did("restart")) == 1


async def test_the_facts_of_the_cause_survive(tmp_path):
    world = dead_world(well, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.RUNNING)
    run, done = await reborn(world, tmp_path, left)
    assert any("requested 1.00 GiB" in line for line in done.actions[-1].why)
    assert run.journal.kv_get(f"remediate/cause/{left.id}") is None


async def test_two_agents_in_a_row_cannot_carry_out_one_step_twice(tmp_path):
    world = dead_world(well, DEAD)
    run = agent(world, tmp_path)
    incident = run.incident(DEAD)
    assert run.journal.claim(f"remediate/s/{incident.id}/1")
    done = await run.remediator.pursue(incident, DEAD, world.situation)
    assert done.actions[0].state is ActionState.REFUSED and world.did("restart") == []


async def test_an_incident_cut_off_before_its_cause_was_named_gets_it_now(tmp_path):
    world = dead_world(well, OOM)
    first = agent(world, tmp_path)
    left = first.incident(DEAD)  # opened on first sight of a dead engine
    first.journal.close()
    _, done = await reborn(world, tmp_path, left)
    assert (done.fault, done.mechanism) == ("oom-serving", Mechanism.BATCH)
    assert [(it.action, it.state) for it in done.actions] == [("oom-reduce-batch", ActionState.VERIFIED)]


async def test_a_server_that_died_again_while_no_agent_watched_is_pursued(tmp_path):
    world = dead_world(well, OOM)
    first = agent(world, tmp_path)
    left = first.incident(OOM)
    first.journal.close()
    world.begin()
    world.current = Life(ready_after=30.0, dies_after=50.0, of=OOM)
    world.clock.seconds += 40
    _, done = await reborn(world, tmp_path, left)
    assert done.state is IncidentState.RESOLVED
    assert [it.action for it in done.actions] == ["oom-reduce-batch"]
