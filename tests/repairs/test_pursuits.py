"""From a dead server to a proven repair, or to a note: the loop over a fake server."""

from __future__ import annotations

import msgspec
import pytest

from agent.errors import LauncherError
from agent.model import (
    ActionState,
    AssemblerFacts,
    Change,
    IncidentState,
    Mechanism,
    Mode,
    Retry,
    State,
)
from agent.remediate import AssemblerCandidate, Policy
from tests.repairs.world import (
    H200,
    MODES,
    OWN_OOM,
    Life,
    agent,
    cause,
    dead_world,
    known,
    situation,
)

OOM = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
FRAGMENTED = cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=OWN_OOM)
DEAD = cause("engine-dead", retry=Retry.MAY)
PTXAS = cause("triton-ptxas", facts=AssemblerFacts(arch="sm_90a", path="/opt/old/ptxas"))


def seqs(change: Change) -> int:
    return int(dict(change.flags).get("--max-num-seqs", "1024"))


def oom_above(limit: int):
    """A start dies in serving while more sequences than ``limit`` are allowed."""

    def life(change: Change, _: int) -> Life:
        return Life(dies_after=40.0 if seqs(change) > limit else None, of=OOM)

    return life


async def test_an_engine_that_died_is_restarted_and_proven(tmp_path):
    world = dead_world(lambda change, n: Life(), DEAD)
    run = agent(world, tmp_path)
    done = await run.repair(DEAD)
    assert done.state is IncidentState.RESOLVED and done.resolved_at is not None
    [action] = done.actions
    assert (action.action, action.state) == ("restart", ActionState.VERIFIED)
    assert [proof.passed for proof in action.proof] == [True] * 4
    assert "serving after 30" in (action.proof[0].detail or "")
    assert len(world.did("restart")) == 1 and not world.did("set-overrides")
    assert run.journal.incident(done.id) == done
    assert [it.state for it in run.seen][-1] is IncidentState.RESOLVED
    assert {IncidentState.ACTING, IncidentState.VERIFYING} <= {it.state for it in run.seen}


async def test_a_batch_is_stepped_down_until_it_holds_and_kept(tmp_path):
    world = dead_world(oom_above(256), OOM)
    done = await agent(world, tmp_path).repair(OOM)
    assert done.state is IncidentState.RESOLVED
    assert [(it.action, it.state) for it in done.actions] == [
        ("oom-reduce-batch", ActionState.FAILED),
        ("oom-reduce-batch", ActionState.VERIFIED),
    ]
    assert seqs(world.overrides) == 256
    assert "1024 -> 512" in done.actions[0].change and "512 -> 256" in done.actions[1].change
    assert "the server died again" in (done.actions[0].outcome or "") or "came again" in (done.actions[0].outcome or "")


@pytest.mark.parametrize(
    ("configured", "fits", "ends_at"), [(64, 8, 8), (64, 9, 8), (32, 8, 8), (16, 8, 8), (64, 63, 32), (64, 3, 2)]
)
async def test_the_batch_converges_within_its_steps_and_does_not_fall_far_below_what_fits(
    tmp_path, configured, fits, ends_at
):
    base = situation(msgspec.structs.replace(H200, max_num_seqs=known(configured)))

    def life(change: Change, _: int) -> Life:
        held = int(dict(change.flags).get("--max-num-seqs", configured)) <= fits
        return Life(dies_after=None if held else 40.0, of=OOM)

    world = dead_world(life, OOM, base=base)
    done = await agent(world, tmp_path).repair(OOM)
    assert done.state is IncidentState.RESOLVED and len(done.actions) <= 4
    assert seqs(world.overrides) == ends_at


async def test_a_death_during_the_proof_is_seen_at_once(tmp_path):
    world = dead_world(oom_above(512), OOM)
    begun = world.clock.seconds
    await agent(world, tmp_path, Policy(hold_seconds=5, serving_seconds=900)).repair(OOM)
    assert world.clock.seconds - begun < 100


async def test_the_allocator_that_does_not_cure_is_rolled_back_before_the_batch(tmp_path):
    def life(change: Change, _: int) -> Life:
        return Life(dies_after=40.0 if seqs(change) > 512 else None, of=OOM)

    world = dead_world(life, FRAGMENTED)
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert [(it.action, it.state) for it in done.actions] == [
        ("oom-expandable-segments", ActionState.ROLLED_BACK),
        ("oom-reduce-batch", ActionState.VERIFIED),
    ]
    assert world.overrides.env == {} and seqs(world.overrides) == 512


async def test_a_change_that_breaks_the_start_is_rolled_back_and_the_next_plan_tried(tmp_path):
    broken = cause("config-invalid")

    def life(change: Change, _: int) -> Life:
        return Life(ready_after=None, dies_after=5.0, of=broken) if change.env else Life()

    world = dead_world(life, FRAGMENTED)
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert [it.state for it in done.actions] == [ActionState.ROLLED_BACK, ActionState.VERIFIED]
    assert "config-invalid" in (done.actions[0].outcome or "")
    assert done.state is IncidentState.RESOLVED


async def test_another_fault_while_serving_is_repaired_and_the_change_stays(tmp_path):
    def life(change: Change, n: int) -> Life:
        return Life(dies_after=45.0, of=DEAD) if n == 2 else Life()

    world = dead_world(life, OOM)
    done = await agent(world, tmp_path).repair(OOM)
    assert [(it.action, it.state) for it in done.actions] == [
        ("oom-reduce-batch", ActionState.INTERRUPTED),
        ("restart", ActionState.VERIFIED),
    ]
    assert seqs(world.overrides) == 512 and done.state is IncidentState.RESOLVED


async def test_assemblers_are_tried_one_by_one_and_rolled_back(tmp_path):
    candidates = tuple(
        AssemblerCandidate(path=f"/usr/local/cuda-{n}/bin/ptxas", version=f"{n}.0", root_owned=True, assembles=True)
        for n in (12, 13)
    )
    base = situation(H200, triton_version="3.6.0", assemblers=candidates)

    def life(change: Change, _: int) -> Life:
        good = change.env.get("TRITON_PTXAS_PATH") == candidates[0].path
        return Life() if good else Life(ready_after=None, dies_after=62.0, of=PTXAS)

    world = dead_world(life, PTXAS, served=False, base=base)
    done = await agent(world, tmp_path).repair(PTXAS)
    assert [it.state for it in done.actions] == [ActionState.ROLLED_BACK, ActionState.VERIFIED]
    assert world.overrides.env == {"TRITON_PTXAS_PATH": candidates[0].path}


async def test_no_candidate_left_ends_unresolved_with_the_old_overrides_and_stays_down(tmp_path):
    one = (AssemblerCandidate(path="/usr/local/cuda-13/bin/ptxas", root_owned=True, assembles=True),)
    base = situation(H200, triton_version="3.6.0", assemblers=one)
    world = dead_world(
        lambda change, n: Life(ready_after=None, dies_after=62.0, of=PTXAS), PTXAS, served=False, base=base
    )
    run = agent(world, tmp_path)
    done = await run.repair(PTXAS)
    assert done.state is IncidentState.UNRESOLVED and world.overrides == Change()
    assert done.actions[0].state is ActionState.ROLLED_BACK
    assert "newer CUDA toolkit" in (done.note or "")
    assert run.remediator.stay_down


async def test_a_server_without_metrics_is_proven_by_the_rest(tmp_path):
    world = dead_world(lambda change, n: Life(tokens=None), DEAD)
    done = await agent(world, tmp_path).repair(DEAD)
    assert done.state is IncidentState.RESOLVED
    assert [proof.passed for proof in done.actions[0].proof] == [True, True, None, True]
    assert "not measured" in (done.actions[0].proof[2].detail or "")


async def test_a_server_that_serves_but_does_not_answer_is_not_called_repaired(tmp_path):
    world = dead_world(lambda change, n: Life(answers=False), DEAD)
    done = await agent(world, tmp_path).repair(DEAD)
    assert done.state is IncidentState.UNRESOLVED
    assert all(it.state is ActionState.FAILED for it in done.actions)
    assert "HTTP 500" in (done.actions[0].outcome or "")


async def test_a_launcher_that_was_faster_is_not_asked_again(tmp_path):
    world = dead_world(lambda change, n: Life(), DEAD)
    world.begin()
    done = await agent(world, tmp_path).repair(DEAD)
    assert done.state is IncidentState.RESOLVED and world.did("restart") == []


async def test_a_hanging_engine_is_restarted_though_it_looks_alive(tmp_path):
    hang = cause("engine-hang", retry=Retry.MAY)
    world = dead_world(lambda change, n: Life(), hang)
    world.begin()
    world.clock.seconds += 100
    done = await agent(world, tmp_path).repair(hang)
    assert done.state is IncidentState.RESOLVED and len(world.did("restart")) == 1


async def test_a_person_who_stops_the_server_ends_the_repair(tmp_path):
    world = dead_world(lambda change, n: Life(ready_after=500.0), DEAD)

    def stop() -> None:
        world.asked = State.STOPPED

    world.on_wait = stop
    done = await agent(world, tmp_path).repair(DEAD)
    assert done.actions[0].state is ActionState.INTERRUPTED
    assert done.state is IncidentState.UNRESOLVED and "a person stopped" in (done.note or "")
    assert len(world.did("restart")) == 1


async def test_the_launchers_own_stop_before_its_restart_is_no_persons_wish(tmp_path):
    hang = cause("engine-hang", retry=Retry.MAY)
    world = dead_world(lambda change, n: Life(), hang)
    world.begin()
    begin = world.begin

    async def restart(reason: str, incident: str, *, verify_memory: bool = True) -> None:
        world.calls.append(("restart", reason))
        world.asked = State.STOPPED
        due = world.clock.seconds + 20

        def later() -> None:
            if world.asked is not None and world.clock.seconds >= due:
                world.asked = None
                begin()

        world.on_wait = later

    world.restart = restart
    done = await agent(world, tmp_path).repair(hang)
    assert done.state is IncidentState.RESOLVED


async def test_overrides_that_cannot_be_set_leave_a_restart_rather_than_a_dead_server(tmp_path):
    world = dead_world(lambda change, n: Life(), OOM)
    world.refuse = "set-overrides"
    done = await agent(world, tmp_path).repair(OOM)
    first, second = done.actions
    assert first.state is ActionState.FAILED and "set-overrides refused" in (first.outcome or "")
    assert (second.action, second.state) == ("restart", ActionState.VERIFIED)
    assert any("set-overrides refused" in why for why in second.why)
    assert len(world.did("restart")) == 1 and done.state is IncidentState.RESOLVED


async def test_a_launcher_that_refuses_every_verb_ends_the_pursuit(tmp_path):
    world = dead_world(lambda change, n: Life(), OOM)
    world.refuse = "set-overrides"
    run = agent(world, tmp_path)

    async def refused(reason: str, incident: str, *, verify_memory: bool = True) -> None:
        raise LauncherError("restart refused", code="refused")

    world.restart = refused
    done = await run.repair(OOM)
    assert done.state is IncidentState.UNRESOLVED
    assert {it.state for it in done.actions} <= {ActionState.FAILED, ActionState.PROPOSED}


async def test_a_command_that_takes_no_flags_is_restarted_with_the_reason_said(tmp_path):
    world = dead_world(lambda change, n: Life(), OOM, base=situation(can_append_flags=False))
    done = await agent(world, tmp_path).repair(OOM)
    assert [it.action for it in done.actions] == ["restart"]
    assert any("no flag can be appended" in why for why in done.actions[0].why)


async def test_switched_off_remedies_leave_a_restart_for_a_fault_of_serving(tmp_path):
    modes = {**MODES, "oom-reduce-batch": Mode.OFF, "oom-expandable-segments": Mode.DRY_RUN}
    world = dead_world(lambda change, n: Life(), FRAGMENTED, base=situation(modes=modes))
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert [(it.action, it.state) for it in done.actions] == [
        ("oom-expandable-segments", ActionState.PROPOSED),
        ("restart", ActionState.VERIFIED),
    ]
    assert not world.did("set-overrides")


async def test_the_second_proven_use_proposes_the_permanent_change(tmp_path):
    world = dead_world(lambda change, n: Life(), OOM)
    run = agent(world, tmp_path)
    first = await run.repair(OOM)
    assert "permanent" not in (first.note or "")
    world.overrides = Change()
    world.kill(OOM)
    second = await run.repair(OOM)
    assert "make it permanent: add --max-num-seqs 512" in (second.note or "")
    assert "make it permanent" in (second.actions[0].outcome or "")


async def test_a_dead_server_is_held_while_the_agent_decides(tmp_path):
    world = dead_world(lambda change, n: Life(), DEAD)
    await agent(world, tmp_path).repair(DEAD)
    assert world.calls[0] == ("hold", 1)


async def test_traffic_during_the_holding_time_is_told(tmp_path):
    world = dead_world(lambda change, n: Life(), DEAD)
    done = await agent(world, tmp_path).repair(DEAD)
    assert "no request arrived" in (done.actions[0].proof[3].detail or "")
