"""The agent dies at every point of a repair and comes back: nothing is done twice, nothing is forgotten."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agent.model import Action, ActionState, CacheFacts, Change, Incident, IncidentState, Mechanism, Mode, Retry
from agent.remediate import Policy
from tests.repairs.world import GIB, MODES, OWN_OOM, Agent, Life, World, agent, cause, dead_world, situation

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


async def test_the_budget_counts_what_an_earlier_life_of_the_agent_did(tmp_path):
    world = dead_world(well, DEAD)
    policy = Policy(budget_actions=2)
    for _ in range(2):
        run = agent(world, tmp_path, policy)
        assert (await run.repair(DEAD)).state is IncidentState.RESOLVED
        run.journal.close()
        world.kill(DEAD)
    run = agent(world, tmp_path, policy)
    third = await run.repair(DEAD)
    assert third.state is IncidentState.UNRESOLVED and "budget of 2" in (third.note or "")
    assert len(world.did("restart")) == 2 and run.remediator.stay_down
    run.guard.reset_breaker("s")
    assert (await run.repair(DEAD)).state is IncidentState.RESOLVED


async def test_an_approval_is_not_acted_on_after_its_time_though_it_was_given(tmp_path):
    world = dead_world(well, SMALL, served=False)
    left = await approved_then_killed(world, tmp_path)
    world.clock.seconds += 4000
    _, done = await reborn(world, tmp_path, left)
    assert done.actions[0].state is ActionState.EXPIRED and world.did("restart", "set-overrides") == []
    assert done.state is IncidentState.UNRESOLVED


async def test_an_approval_that_was_given_in_time_is_carried_out_by_the_next_life(tmp_path):
    world = dead_world(well, SMALL, served=False)
    left = await approved_then_killed(world, tmp_path)
    _, done = await reborn(world, tmp_path, left)
    assert [(it.actor, it.state) for it in done.actions] == [("ada", ActionState.VERIFIED)]
    assert len(world.did("restart")) == 1


async def approved_then_killed(world: World, folder) -> Incident:
    left = await die_at(agent(world, folder), SMALL, ActionState.AWAITING_APPROVAL)
    run = agent(world, folder)
    given = msgspec.structs.replace(left.actions[0], state=ActionState.APPROVED, actor="ada")
    left = msgspec.structs.replace(left, actions=(given,))
    run.journal.save_incident(left)
    run.journal.close()
    return left


async def test_what_was_decided_before_the_death_is_not_done_to_a_server_that_is_back(tmp_path):
    world = dead_world(well, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.APPROVED)
    world.begin()
    world.clock.seconds += 600
    _, done = await reborn(world, tmp_path, left)
    assert done.state is IncidentState.RESOLVED and done.actions[0].state is ActionState.INTERRUPTED
    assert world.did("restart", "set-overrides") == []


async def test_a_half_made_change_is_proven_first_where_the_launcher_has_started_the_server(tmp_path):
    world = dead_world(well, OOM)
    left = await die_at(agent(world, tmp_path), OOM, ActionState.RUNNING)
    world.begin()
    world.clock.seconds += 600
    _, done = await reborn(world, tmp_path, left)
    assert done.state is IncidentState.RESOLVED and done.actions[0].state is ActionState.INTERRUPTED
    assert world.did("restart", "set-overrides") == []


async def test_overrides_that_a_person_changed_before_an_approved_change_refuse_the_old_arithmetic(tmp_path):
    base = situation(modes={**MODES, "oom-reduce-batch": Mode.APPROVE, "restart": Mode.OFF})
    world = dead_world(well, OOM, base=base)
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.repair(OOM))
    for _ in range(2000):
        await asyncio.sleep(0)
        waits = [it for it in run.seen[-1].actions if it.state is ActionState.AWAITING_APPROVAL] if run.seen else []
        if waits:
            break
    world.overrides = Change(flags=(("--max-num-seqs", "100"),))
    run.remediator.approve(waits[0].id, "ada")
    for _ in range(2000):
        await asyncio.sleep(0)
        again = [it for it in run.seen[-1].actions if it.state is ActionState.AWAITING_APPROVAL]
        if again:
            break
    assert run.seen[-1].actions[0].state is ActionState.REFUSED
    assert "overrides were changed" in (run.seen[-1].actions[0].outcome or "")
    assert "100 (override) -> 50" in " ".join(again[0].why) and world.did("restart") == []
    run.remediator.deny(again[0].id, "ada")
    await task
