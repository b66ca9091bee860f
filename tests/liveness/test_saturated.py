"""Saturated is pressure that lasts, with progress; it never becomes stalled."""

from __future__ import annotations

import pytest

from agent.collect import HealthKind
from agent.model import State
from tests.liveness.world import World


def pressed(**changes: object) -> World:
    world = World()
    world.engine.decoding = 16
    world.run(15)
    for name, value in changes.items():
        setattr(world.engine, name, value)
    return world


@pytest.mark.parametrize(("changes", "reason"), [({"waiting": 48}, "48 requests wait"), ({"kv": 0.97}, "97% full")])
def test_ten_seconds_of_pressure_are_saturated(changes: dict[str, object], reason: str) -> None:
    world = pressed(**changes)
    world.run(10)
    assert world.state is State.SERVING
    world.run(2)
    assert world.state is State.SATURATED and reason in world.reason


def test_a_queue_that_empties_for_a_moment_stays_saturated_and_a_calm_one_serves_again() -> None:
    world = pressed(waiting=10)
    world.run(12)
    for _ in range(20):
        world.engine.waiting = 0
        world.run(3)
        world.engine.waiting = 5
        world.run(1)
        assert world.state is State.SATURATED
    world.engine.waiting = 0
    world.run(12)
    assert world.state is State.SERVING


def test_refusals_at_the_queue_limit_are_saturated() -> None:
    world = pressed()
    for _ in range(14):
        world.engine.rejections += 100
        world.round()
    assert world.state is State.SATURATED and "refused" in world.reason


def test_half_an_hour_of_saturation_is_never_anything_else() -> None:
    world = pressed(waiting=200, kv=0.99)
    world.run(1800)
    assert set(world.seen[-1780:]) == {State.SATURATED}
    assert not world.canaries, "a server with traffic is not asked"


def test_health_that_times_out_while_tokens_move_is_saturated_and_without_movement_unknown() -> None:
    world = pressed()
    world.health = HealthKind.TIMEOUT
    world.run(20)
    assert world.state is State.SATURATED and "makes progress" in world.reason
    world.engine.steps, world.engine.cpu_share = False, 0.9
    world.run(15)
    assert world.state is State.UNKNOWN
