"""A proof that fails: what it means depends on whether the server ends, and on nothing that came before it did."""

from __future__ import annotations

from agent.errors import LauncherError
from agent.model import Action, ActionState, Change, IncidentState, Mechanism, Retry, State
from agent.remediate import Policy
from tests.repairs.world import OWN_OOM, Life, agent, cause, dead_world

OOM = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
FRAGMENTED = cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=OWN_OOM)
DEAD = cause("engine-dead", retry=Retry.MAY)
LOADING = cause("model-load-hiccup", retry=Retry.MAY)


def seqs(change: Change) -> int:
    return int(dict(change.flags).get("--max-num-seqs", "1024"))


def states(actions: tuple[Action, ...]) -> list[ActionState]:
    return [it.state for it in actions]


async def test_a_fatal_line_before_the_exit_keeps_the_step_and_goes_on_from_it(tmp_path):
    def life(change: Change, _: int) -> Life:
        return Life(dies_after=50.0 if seqs(change) > 256 else None, of=OOM, line_before=4.0)

    world = dead_world(life, OOM)
    done = await agent(world, tmp_path).repair(OOM)
    assert states(done.actions) == [ActionState.FAILED, ActionState.VERIFIED]
    assert "came again" in (done.actions[0].outcome or "")
    assert seqs(world.overrides) == 256 and world.did("clear-overrides") == []


async def test_a_fatal_line_before_the_exit_still_rolls_the_allocator_back(tmp_path):
    def life(change: Change, _: int) -> Life:
        return Life(dies_after=50.0 if change.env else None, of=FRAGMENTED, line_before=4.0)

    world = dead_world(life, FRAGMENTED)
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert states(done.actions) == [ActionState.ROLLED_BACK, ActionState.VERIFIED]
    assert world.overrides.env == {}


async def test_a_server_that_survives_the_line_and_answers_is_not_restarted_for_it(tmp_path):
    world = dead_world(lambda change, n: Life(dies_after=2000.0, of=OOM, line_before=1960.0), OOM)
    begun = world.clock.seconds
    run = agent(world, tmp_path)
    done = await run.repair(OOM)
    assert done.state is IncidentState.UNRESOLVED and states(done.actions) == [ActionState.FAILED]
    assert "goes on answering" in (done.note or "")
    assert len(world.did("restart")) == 1 and seqs(world.overrides) == 512
    assert world.clock.seconds - begun < 120 and world.state() is State.SERVING
    assert run.guard.breaker_open("s") is None, "a server that serves is not taken out of the agent's care"


async def test_a_server_that_survives_the_line_but_does_not_answer_goes_to_the_next_step(tmp_path):
    def life(change: Change, n: int) -> Life:
        return Life(dies_after=2000.0 if n == 2 else None, of=OOM, line_before=1960.0)

    world = dead_world(life, OOM)

    def mute() -> None:
        world.current.answers = not (world.starts == 2 and world.log_seen("oom-serving"))

    world.on_wait = mute
    done = await agent(world, tmp_path).repair(OOM)
    assert states(done.actions) == [ActionState.FAILED, ActionState.VERIFIED]
    assert len(world.did("restart")) == 2 and seqs(world.overrides) == 256


async def test_a_server_that_never_answers_is_really_restarted_each_time(tmp_path):
    world = dead_world(lambda change, n: Life(answers=n > 3), DEAD)
    done = await agent(world, tmp_path).repair(DEAD)
    assert states(done.actions) == [ActionState.FAILED, ActionState.FAILED, ActionState.VERIFIED]
    assert len(world.did("restart")) == 3


async def test_a_person_who_stops_the_server_after_the_line_is_heard(tmp_path):
    world = dead_world(lambda change, n: Life(dies_after=2000.0, of=FRAGMENTED, line_before=1960.0), FRAGMENTED)

    def stop() -> None:
        world.asked = State.STOPPED if world.log_seen("oom-serving") and world.starts == 2 else None

    world.on_wait = stop
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert "a person stopped" in (done.note or "") and len(world.did("restart")) == 1


async def test_a_start_that_fails_again_and_again_is_paced(tmp_path):
    """At once, then after 1, 2 and 4 seconds: a failing start must not spin."""
    world = dead_world(lambda change, n: Life(ready_after=None, dies_after=5.0, of=LOADING), LOADING, served=False)
    asked: list[float] = []
    restart = world.restart

    async def timed(reason: str, incident: str, *, verify_memory: bool = True) -> None:
        asked.append(world.clock.seconds)
        await restart(reason, incident, verify_memory=verify_memory)

    world.restart = timed
    died = world.clock.seconds
    done = await agent(world, tmp_path).repair(LOADING)
    assert done.state is IncidentState.UNRESOLVED and len(asked) == 4
    waits = [at - before - 5.0 for before, at in zip([died - 5.0, *asked], asked, strict=False)]
    assert waits[0] < 1.0
    assert [round(wait) for wait in waits[1:]] == [1, 2, 4]


async def test_the_steps_of_a_changing_remedy_are_paced_too(tmp_path):
    world = dead_world(lambda change, n: Life(ready_after=None, dies_after=5.0, of=OOM), OOM, served=True)
    begun = world.clock.seconds
    await agent(world, tmp_path, Policy(backoff_seconds=(0, 100, 200, 400))).repair(OOM)
    assert world.clock.seconds - begun >= 700


async def test_a_change_that_somebody_else_replaced_is_not_rolled_back_over_theirs(tmp_path):
    theirs = Change(flags=(("--max-num-seqs", "77"),))

    def life(change: Change, n: int) -> Life:
        return Life(dies_after=45.0 if n == 2 else None, of=FRAGMENTED)

    world = dead_world(life, FRAGMENTED)

    def person() -> None:
        if world.starts == 2 and world.clock.seconds > 1100:
            world.overrides = theirs

    world.on_wait = person
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert done.actions[0].state is ActionState.FAILED
    assert "somebody else changed the overrides" in (done.actions[0].outcome or "")
    assert ("clear-overrides", None) not in world.calls


async def test_a_roll_back_that_the_launcher_refuses_is_said(tmp_path):
    world = dead_world(lambda change, n: Life(dies_after=45.0 if change.env else None, of=FRAGMENTED), FRAGMENTED)
    world.refuse = "clear-overrides"
    done = await agent(world, tmp_path).repair(FRAGMENTED)
    assert done.actions[0].state is ActionState.FAILED
    assert "not rolled back: clear-overrides refused" in (done.actions[0].outcome or "")


async def test_a_log_that_pours_out_lines_does_not_make_the_proof_pour_out_requests(tmp_path):
    world = dead_world(lambda change, n: Life(answers=False), DEAD)
    asked: list[float] = []
    answer = world.request_answered

    async def counted() -> tuple[bool, str]:
        asked.append(world.clock.seconds)
        return await answer()

    async def woken_at_once(timeout: float) -> None:
        await world.clock.sleep(0.01)

    world.request_answered, world.wait_change = counted, woken_at_once
    done = await agent(world, tmp_path, Policy(request_seconds=30, budget_steps=1)).repair(DEAD)
    assert done.state is IncidentState.UNRESOLVED
    assert 10 < len(asked) <= 62


async def test_a_change_that_was_set_and_then_not_started_does_not_stay_behind(tmp_path):
    world = dead_world(lambda change, n: Life(), FRAGMENTED)
    restart, refusals = world.restart, iter([True])

    async def refused_once(reason: str, incident: str, *, verify_memory: bool = True) -> None:
        if next(refusals, False):
            raise LauncherError("restart refused", code="refused")
        await restart(reason, incident, verify_memory=verify_memory)

    world.restart = refused_once
    run = agent(world, tmp_path)
    done = await run.repair(FRAGMENTED)
    assert states(done.actions) == [ActionState.ROLLED_BACK, ActionState.VERIFIED]
    assert world.overrides.env == {} and done.state is IncidentState.RESOLVED
    assert all(run.journal.kv_get(f"remediate/before/{it.id}") is None for it in done.actions)
