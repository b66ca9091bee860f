"""A person approves, refuses, or never comes; the server is not kept down for it where a restart can help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agent.errors import ConflictError
from agent.model import Action, ActionState, CacheFacts, Change, Incident, IncidentState, Mechanism, Mode
from agent.remediate import Policy
from tests.repairs.world import GIB, MODES, OWN_OOM, Agent, Life, agent, cause, dead_world, situation

SMALL = cause(
    "kv-cache-too-small",
    facts=CacheFacts(max_model_len=8192, needed_bytes=4 * GIB, available_bytes=GIB, estimated_max_model_len=2050),
)
OOM = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
ASK = {**MODES, "oom-reduce-batch": Mode.APPROVE}


def fits(change: Change, n: int) -> Life:
    return Life() if change.flags else Life(ready_after=None, dies_after=20.0, of=SMALL)


def well(change: Change, n: int) -> Life:
    return Life()


async def until(run: Agent, ready: Callable[[], Action | None]) -> Action:
    for _ in range(5000):
        found = ready()
        if found is not None:
            return found
        await asyncio.sleep(0)
    raise AssertionError(f"nothing waits: {run.seen[-1:]}")


def waiting(run: Agent) -> Action | None:
    newest: Incident | None = run.seen[-1] if run.seen else None
    if newest is None or newest.state is not IncidentState.AWAITING_APPROVAL:
        return None
    return next((it for it in newest.actions if it.state is ActionState.AWAITING_APPROVAL), None)


async def test_an_approved_length_is_set_and_proven(tmp_path):
    world = dead_world(fits, SMALL, served=False)
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.repair(SMALL))
    action = await until(run, lambda: waiting(run))
    assert action.expires_at is not None and world.did("restart", "set-overrides") == []
    assert run.remediator.approve(action.id, "ada").state is ActionState.APPROVED
    done = await task
    assert done.state is IncidentState.RESOLVED
    assert (done.actions[0].actor, done.actions[0].state) == ("ada", ActionState.VERIFIED)
    assert dict(world.overrides.flags) == {"--max-model-len": "2048"}


async def test_a_refused_length_leaves_the_server_down_with_advice(tmp_path):
    world = dead_world(fits, SMALL, served=False)
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.repair(SMALL))
    action = await until(run, lambda: waiting(run))
    run.remediator.deny(action.id, "bob")
    done = await task
    assert done.state is IncidentState.UNRESOLVED and done.actions[0].state is ActionState.DENIED
    assert "denied by bob" in (done.actions[0].outcome or "")
    assert "not approved" in (done.note or "") and world.did("restart") == []
    assert run.remediator.stay_down


async def test_a_proposal_expires_and_the_hold_is_renewed_until_then(tmp_path):
    world = dead_world(fits, SMALL, served=False)
    begun = world.clock.seconds
    run = agent(world, tmp_path, Policy(approval_expires_seconds=600))
    done = await run.repair(SMALL)
    assert done.actions[0].state is ActionState.EXPIRED and done.state is IncidentState.UNRESOLVED
    assert 600 <= world.clock.seconds - begun < 660
    assert len(world.did("hold")) >= 30
    with pytest.raises(ConflictError, match="does not wait"):
        run.remediator.approve(done.actions[0].id, "late")


async def test_deciding_twice_or_about_nothing_is_an_error(tmp_path):
    world = dead_world(fits, SMALL, served=False)
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.repair(SMALL))
    action = await until(run, lambda: waiting(run))
    run.remediator.approve(action.id, "ada")
    with pytest.raises(ConflictError, match="does not wait"):
        run.remediator.deny(action.id, "bob")
    with pytest.raises(ConflictError, match="does not wait"):
        run.remediator.approve("a-unknown", "ada")
    await task


async def test_a_server_that_a_restart_can_bring_back_is_restarted_before_asking(tmp_path):
    world = dead_world(well, OOM, base=situation(modes=ASK))
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.repair(OOM))
    action = await until(run, lambda: waiting(run))
    assert world.did("restart", "set-overrides") == [("restart", "restart: restart with the same command")]
    run.remediator.approve(action.id, "ada")
    done = await task
    assert done.state is IncidentState.RESOLVED
    assert [(it.action, it.state) for it in done.actions] == [
        ("restart", ActionState.VERIFIED),
        ("oom-reduce-batch", ActionState.VERIFIED),
    ]
    assert dict(world.overrides.flags)["--max-num-seqs"] == "512"


async def test_a_restarted_server_goes_on_when_nobody_approves(tmp_path):
    world = dead_world(well, OOM, base=situation(modes=ASK))
    done = await agent(world, tmp_path, Policy(approval_expires_seconds=300)).repair(OOM)
    assert done.state is IncidentState.RESOLVED and "not approved" in (done.note or "")
    assert world.overrides == Change() and len(world.did("restart")) == 1


async def test_a_server_that_dies_while_a_person_is_asked_is_restarted_again(tmp_path):
    world = dead_world(well, OOM, base=situation(modes=ASK))
    run = agent(world, tmp_path, Policy(approval_expires_seconds=3600))
    task = asyncio.create_task(run.repair(OOM))
    await until(run, lambda: waiting(run))
    world.kill(OOM)
    action = await until(run, lambda: waiting(run) if len(world.did("restart")) == 2 else None)
    run.remediator.approve(action.id, "ada")
    done = await task
    assert done.state is IncidentState.RESOLVED
    assert [it.action for it in done.actions] == ["restart", "oom-reduce-batch", "restart"]
    assert dict(world.overrides.flags)["--max-num-seqs"] == "512"


async def test_an_automatic_remedy_goes_before_one_that_must_be_asked_for(tmp_path):
    modes = {**MODES, "oom-expandable-segments": Mode.APPROVE}
    fragmented = cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=OWN_OOM)
    world = dead_world(well, fragmented, base=situation(modes=modes))
    done = await agent(world, tmp_path).repair(fragmented)
    assert [it.action for it in done.actions] == ["oom-reduce-batch"]


async def test_frozen_while_a_person_approves_is_not_acted_on(tmp_path):
    world = dead_world(fits, SMALL, served=False)
    run = agent(world, tmp_path)
    task = asyncio.create_task(run.repair(SMALL))
    action = await until(run, lambda: waiting(run))
    world.is_frozen = True
    run.remediator.approve(action.id, "ada")
    done = await task
    assert done.actions[0].state is ActionState.REFUSED and "frozen" in (done.actions[0].outcome or "")
    assert world.did("restart", "set-overrides") == []
