"""Whatever happens in whatever order: without one of the listed pieces of evidence nothing is ever called stalled."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.collect import HealthKind
from agent.model import State
from agent.watch.activity import GpuWork
from tests.liveness.world import FakeEngine, World

PHASE = st.fixed_dictionaries(
    {
        "seconds": st.integers(1, 60),
        "steps": st.booleans(),
        "decoding": st.integers(0, 20),
        "prefilling": st.integers(0, 2),
        "waiting": st.integers(0, 30),
        "deferred": st.integers(0, 3),
        "kv": st.floats(0, 1),
        "answers": st.sampled_from([None, True, False]),
        "rejections": st.integers(0, 5),
    }
)


def live(world: World, phase: dict[str, object]) -> None:
    for name, value in phase.items():
        if name not in ("seconds", "rejections"):
            setattr(world.engine, name, value)
    world.engine.rejections += phase["rejections"]  # type: ignore[operator]
    world.run(int(phase["seconds"]))  # type: ignore[call-overload]
    assert State.STALLED not in world.seen, world.reason


@settings(max_examples=60, deadline=None)
@given(st.lists(PHASE, min_size=1, max_size=12), st.sampled_from([GpuWork.NONE, GpuWork.IDLE, GpuWork.UNKNOWN]))
def test_while_somebody_computes(phases: list[dict[str, object]], gpu: GpuWork) -> None:
    world = World(gpu=gpu)
    world.engine.cpu_share = 0.6
    for phase in phases:
        live(world, phase)


@settings(max_examples=60, deadline=None)
@given(st.lists(PHASE, min_size=1, max_size=12), st.sampled_from([GpuWork.BUSY, GpuWork.UNKNOWN]))
def test_while_at_most_one_request_decodes_beside_a_gpu(phases: list[dict[str, object]], gpu: GpuWork) -> None:
    world = World(gpu=gpu)
    world.engine.cpu_share = 0.0
    for phase in phases:
        live(world, {**phase, "decoding": min(1, int(phase["decoding"]))})  # type: ignore[call-overload]


@settings(max_examples=60, deadline=None)
@given(st.lists(PHASE, min_size=1, max_size=12), st.booleans())
def test_while_it_is_paused_or_steps_within_nine_seconds(phases: list[dict[str, object]], paused: bool) -> None:
    world = World()
    for phase in phases:
        world.paused = paused and not phase["steps"]
        if not world.paused:
            phase = {**phase, "seconds": min(9, int(phase["seconds"]))}  # type: ignore[call-overload]
        live(world, phase)
        world.paused = False
        live(world, {**phase, "steps": True, "seconds": 2, "decoding": 1, "answers": None})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PHASE, st.sampled_from(list(HealthKind))), min_size=1, max_size=10))
def test_of_two_engines_the_one_that_works_is_never_named(parts: list[tuple[dict[str, object], HealthKind]]) -> None:
    world = World(engines=[FakeEngine("0", 100, state="T"), FakeEngine("1", 200, decoding=4)])
    for phase, kind in parts:
        world.health = kind
        world.run(int(phase["seconds"]))  # type: ignore[call-overload]
        other = world.liveness.engines.get("1")
        assert other is None or other.state is not State.STALLED
