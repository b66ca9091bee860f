"""Stalled is said on evidence alone: what a hang, a long prefill, a pause and a full server look like over time."""

from __future__ import annotations

import pytest

from agent.collect import HealthKind
from agent.model import State
from agent.watch.activity import GpuWork
from agent.watch.liveness import Child
from agent.watch.shape import Shape
from tests.liveness.world import FakeEngine, World


def stalled_after(world: World, seconds: int) -> int | None:
    took = world.run(seconds, until=lambda: world.state is State.STALLED)
    return took if world.state is State.STALLED else None


def decoding(count: int = 8, seconds: int = 20, **options: object) -> World:
    world = World(**options)  # type: ignore[arg-type]
    world.engine.decoding = count
    world.run(seconds)
    assert world.state is State.SERVING
    return world


def test_a_stopped_worker_under_load_is_stalled_within_12_s_and_serves_again_when_it_goes_on() -> None:
    world = decoding()
    world.engine.state = "T"
    took = stalled_after(world, 30)
    assert took is not None and 10 <= took <= 12
    assert "Worker (pid 101) is stopped" in world.reason and "8 running" in world.reason
    world.run(20)
    assert world.state is State.STALLED, "it stays so"
    world.engine.state = "S"
    assert world.run(10, until=lambda: world.state is State.SERVING) <= 2
    world.run(60)
    assert set(world.seen[-58:]) == {State.SERVING}


def test_a_debugger_that_holds_it_for_a_moment_is_none() -> None:
    world = decoding()
    for _ in range(10):
        world.engine.state = "t"
        world.run(4)
        world.engine.state = "S"
        world.run(3)
    assert State.STALLED not in world.seen and State.UNKNOWN not in world.seen


def test_a_worker_stopped_while_idle_is_found_by_a_canary_within_30_s() -> None:
    world = World()
    world.run(40)
    assert world.state is State.SERVING and world.canaries
    world.engine.state = "T"
    took = stalled_after(world, 60)
    assert took is not None and took <= 30
    assert "canary" in world.reason
    world.engine.state = "S"
    world.run(3)
    assert world.state is State.SERVING


def test_a_worker_that_stops_as_the_last_request_ends_leaves_no_work_in_sight_and_is_found_all_the_same() -> None:
    world = decoding()
    world.engine.decoding = 0
    world.round()
    world.engine.state = "T"
    took = stalled_after(world, 60)
    assert took is not None and took <= 13


def test_one_prefill_of_90_s_in_one_step_is_unknown_and_the_canary_behind_it_proves_nothing() -> None:
    """As seen: gauges at 0, CPU busy, the canary waits 80 s."""
    world = World()
    world.run(20)
    world.engine.steps, world.engine.answers, world.engine.cpu_share = False, False, 1.9
    world.run(90)
    assert State.STALLED not in world.seen
    assert world.state is State.UNKNOWN and "a long prefill looks the same" in world.reason
    world.engine.steps, world.engine.answers, world.engine.cpu_share = True, None, None
    world.engine.decoding = 1
    world.run(2)
    assert world.state is State.SERVING


def test_a_prefill_in_chunks_moves_the_kv_gauge_and_serves() -> None:
    world = World()
    world.run(5)
    world.engine.prefilling = 1
    for chunk in range(30):
        world.engine.kv = chunk / 100
        world.engine.steps = True
        world.round()
        world.engine.steps = False
        world.engine.cpu_share = 1.9
        world.run(4)
    assert set(world.seen[5:]) == {State.SERVING}


def test_on_a_gpu_whose_work_is_not_known_a_quiet_cpu_is_no_evidence_for_a_prefill() -> None:
    world = World(gpu=GpuWork.UNKNOWN)
    world.run(5)
    world.engine.prefilling = 1
    world.run(2)
    world.engine.steps, world.engine.cpu_share = False, 0.0
    world.run(400)
    assert State.STALLED not in world.seen and world.state is State.UNKNOWN


@pytest.mark.parametrize(("gpu", "least", "most"), [(GpuWork.NONE, 10, 13), (GpuWork.IDLE, 10, 13),
                                                    (GpuWork.UNKNOWN, 30, 33), (GpuWork.BUSY, 120, 123)])  # fmt: skip
def test_decoding_that_freezes_while_nobody_uses_the_cpu(gpu: GpuWork, least: int, most: int) -> None:
    world = decoding(gpu=gpu)
    world.engine.steps, world.engine.cpu_share = False, 0.0
    took = stalled_after(world, 200)
    assert took is not None and least <= took <= most, world.reason


def test_decoding_that_freezes_while_the_cpu_computes_is_unknown() -> None:
    """A kernel is compiled, or a server without a GPU takes a huge prompt in one step."""
    world = decoding(gpu=GpuWork.IDLE)
    world.engine.steps, world.engine.cpu_share = False, 1.0
    world.run(400)
    assert State.STALLED not in world.seen and world.state is State.UNKNOWN


def test_where_no_process_can_be_seen_only_two_frozen_decoders_are_evidence_and_late() -> None:
    world = decoding(sees_processes=False, launched=False)
    world.engine.steps = False
    took = stalled_after(world, 200)
    assert took is not None and 120 <= took <= 123
    one = decoding(count=1, sees_processes=False, launched=False)
    one.engine.steps = False
    assert stalled_after(one, 400) is None


def test_without_chunked_prefill_frozen_decoders_prove_nothing() -> None:
    world = decoding(sees_processes=False)
    world.liveness.saw_shape(Shape(chunked=False))
    world.engine.steps = False
    assert stalled_after(world, 400) is None


def test_steps_that_are_long_by_habit_are_waited_for() -> None:
    world = World(sees_processes=False)
    world.engine.decoding = 4
    for _ in range(20):
        world.engine.steps = True
        world.round()
        world.engine.steps = False
        world.run(7)
    assert State.UNKNOWN not in world.seen
    world.run(14)
    assert world.state is State.SERVING, "21 s are three of its steps"
    world.run(8)
    assert world.state is State.UNKNOWN


def test_processes_in_the_kernel_for_half_a_minute_are_stalled() -> None:
    world = decoding(count=1, gpu=GpuWork.UNKNOWN)
    world.engine.steps, world.engine.state, world.engine.cpu_share = False, "D", 0.0
    took = stalled_after(world, 60)
    assert took is not None and 30 <= took <= 34 and "blocked in the kernel" in world.reason


def test_an_idle_engine_that_leaves_a_canary_alone_for_half_a_minute_while_nobody_computes_is_stalled() -> None:
    world = World()
    world.run(20)
    world.engine.steps = False
    took = stalled_after(world, 80)
    assert took is not None and 30 <= took <= 50 and "nobody computes" in world.reason


def test_a_busy_api_server_may_not_have_handed_the_canary_on() -> None:
    world = World()
    world.run(20)
    world.engine.steps, world.api_share = False, 0.9
    assert stalled_after(world, 200) is None
    assert world.state is State.UNKNOWN


def test_requests_that_wait_for_another_node_are_no_work_of_this_one() -> None:
    world = World()
    world.engine.deferred = 3
    world.run(2)
    world.engine.steps = False
    world.run(200)
    assert State.STALLED not in world.seen


def test_a_server_spread_over_nodes_may_rest_while_another_computes() -> None:
    world = decoding(count=1)
    world.liveness.saw_shape(Shape(whole=False))
    world.engine.steps = False
    assert stalled_after(world, 300) is None


def test_a_pause_of_minutes_under_load_is_paused_and_its_end_is_no_stall() -> None:
    world = decoding()
    world.paused, world.engine.steps = True, False
    world.run(300)
    assert world.state is State.PAUSED
    world.paused, world.engine.steps = False, True
    world.run(30)
    assert State.STALLED not in world.seen and world.state is State.SERVING


def test_nothing_is_stalled_before_a_pause_was_asked_for() -> None:
    world = decoding()
    world.liveness.saw_paused = lambda paused: False  # type: ignore[method-assign]
    world.liveness.wants_canary = lambda now: None  # type: ignore[method-assign]
    world.engine.steps, world.engine.cpu_share = False, 0.0
    assert stalled_after(world, 60) is None


def test_a_sleeping_engine_is_paused() -> None:
    world = decoding()
    world.engine.awake, world.engine.steps = False, False
    world.run(100)
    assert world.state is State.PAUSED
    world.engine.awake, world.engine.steps = True, True
    world.run(20)
    assert State.STALLED not in world.seen and world.state is State.SERVING


def test_two_engines_one_stopped_that_one_is_named() -> None:
    world = World(engines=[FakeEngine("0", 100, decoding=4), FakeEngine("1", 200, decoding=4)])
    world.run(20)
    world.engines[1].state = "T"
    took = stalled_after(world, 30)
    assert took is not None and took <= 12
    assert world.reason.startswith("engine 1:") and "pid 201" in world.reason
    states = {name: one.state for name, one in world.liveness.engines.items()}
    assert states == {"0": State.SERVING, "1": State.STALLED}


def test_two_idle_engines_one_stopped_is_asked_first_and_found_within_30_s() -> None:
    world = World(engines=[FakeEngine("0", 100), FakeEngine("1", 200)])
    world.run(60)
    world.engines[0].state = "T"
    took = stalled_after(world, 60)
    assert took is not None and took <= 30
    assert world.reason.startswith("engine 0:")


def test_an_api_server_that_is_stopped_answers_nothing_and_is_stalled() -> None:
    world = decoding()
    world.health = HealthKind.TIMEOUT
    reading = world.reading()
    stopped = [one if one.pid != 1 else type(one)(pid=1, ppid=0, title=one.title, state="T", cpu_seconds=1.0)
               for one in reading.members]  # fmt: skip
    for _ in range(14):
        world.clock.seconds += 1
        world.liveness.saw_health(_timeout(world))
        world.liveness.saw_activity(type(reading)(processes=3, resident_bytes=0, members=tuple(stopped)),
                                    GpuWork.NONE, world.clock.seconds)  # fmt: skip
    assert world.state is State.STALLED and "vllm (pid 1) is stopped" in world.reason


def _timeout(world: World):  # type: ignore[no-untyped-def]
    from agent.collect import Health

    return Health(kind=HealthKind.TIMEOUT, detail="/health gave no answer within 2 s", at=world.clock.seconds)


@pytest.mark.parametrize("child", [Child.STARTING, Child.DRAINING, Child.STOPPED, Child.DEAD])
def test_only_a_server_that_serves_can_stall(child: Child) -> None:
    world = decoding()
    world.engine.state = "T"
    world.liveness.saw_child(child)
    world.run(60)
    assert State.STALLED not in world.seen and not world.canaries


def test_a_drain_that_only_the_log_tells_of_is_draining() -> None:
    world = decoding()
    world.liveness.saw_shutdown(True)
    world.engine.steps, world.engine.cpu_share = False, 0.0
    world.run(60)
    assert set(world.seen[20:]) == {State.DRAINING} and not world.canaries


def test_a_debugger_that_holds_a_long_prefill_for_a_moment_is_none() -> None:
    world = World()
    world.run(5)
    world.engine.prefilling = 1
    world.round()
    world.engine.steps, world.engine.cpu_share = False, 1.0
    for _ in range(20):
        world.engine.state = "S"
        world.run(8)
        world.engine.state = "t"
        world.run(3)
    assert State.STALLED not in world.seen


def test_the_first_step_after_a_pause_may_take_its_time() -> None:
    world = decoding()
    world.paused, world.engine.steps = True, False
    world.run(120)
    world.paused = False
    world.run(8)
    world.engine.steps = True
    world.run(10)
    assert State.STALLED not in world.seen and State.UNKNOWN not in world.seen


def test_a_reading_that_is_missed_ends_no_stall() -> None:
    world = decoding()
    world.engine.state = "T"
    assert stalled_after(world, 30) is not None
    world.sees_processes = False
    world.run(30)
    assert set(world.seen[-30:]) == {State.STALLED}


def test_a_stop_teaches_nothing_of_how_long_steps_take() -> None:
    world = decoding()
    world.engine.state = "T"
    world.run(40)
    world.engine.state = "S"
    world.run(5)
    world.engine.steps, world.engine.cpu_share = False, 1.0
    assert world.run(60, until=lambda: world.state is State.UNKNOWN) <= 12
