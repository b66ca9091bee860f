"""The state of a server from the launcher's word and /health: one refused connection decides nothing."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from agent.collect import Health, HealthKind
from agent.model import State
from agent.watch.liveness import Child, Liveness


class FixedClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("liveness does not wait")


def health(kind: HealthKind) -> Health:
    return Health(kind=kind, detail=kind.value, at=0.0)


@pytest.fixture
def liveness() -> Liveness:
    return Liveness(FixedClock())


def test_nothing_observed_is_unknown(liveness: Liveness) -> None:
    assert liveness.standing.state is State.UNKNOWN


def test_a_start_is_starting_until_health_answers(liveness: Liveness) -> None:
    liveness.saw_child(Child.STARTING)
    liveness.saw_health(health(HealthKind.REFUSED))
    liveness.saw_health(health(HealthKind.REFUSED))
    assert liveness.standing.state is State.STARTING
    liveness.saw_loading("loading weights 40 %")
    assert liveness.standing.reason == "loading weights 40 %"
    liveness.saw_health(health(HealthKind.OK))
    assert liveness.standing.state is State.STARTING, "another process may hold the port"
    liveness.saw_child(Child.READY)
    assert liveness.standing.state is State.SERVING


def test_one_failed_check_changes_nothing_and_two_are_unknown(liveness: Liveness) -> None:
    liveness.saw_child(Child.READY)
    liveness.saw_health(health(HealthKind.OK))
    liveness.saw_health(health(HealthKind.TIMEOUT))
    assert liveness.standing.state is State.SERVING
    liveness.saw_health(health(HealthKind.TIMEOUT))
    assert liveness.standing.state is State.UNKNOWN


def test_a_dead_engine_behind_a_live_port_is_dead(liveness: Liveness) -> None:
    liveness.saw_child(Child.READY)
    liveness.saw_health(health(HealthKind.ENGINE_DEAD))
    assert liveness.standing.state is State.DEAD


@pytest.mark.parametrize(
    ("child", "state"),
    [(Child.DEAD, State.DEAD), (Child.STOPPED, State.STOPPED), (Child.DRAINING, State.DRAINING)],
)
def test_the_launchers_word_outweighs_an_old_answer(liveness: Liveness, child: Child, state: State) -> None:
    liveness.saw_child(Child.READY)
    liveness.saw_health(health(HealthKind.OK))
    assert liveness.saw_child(child)
    assert liveness.standing.state is state


def test_a_new_start_forgets_the_last_ones_health(liveness: Liveness) -> None:
    liveness.saw_child(Child.READY)
    liveness.saw_health(health(HealthKind.OK))
    liveness.saw_child(Child.DEAD)
    liveness.saw_child(Child.STARTING)
    assert liveness.standing.state is State.STARTING


def test_attached_a_server_that_never_answered_is_unknown_not_dead(liveness: Liveness) -> None:
    for _ in range(3):
        liveness.saw_health(health(HealthKind.REFUSED))
    assert liveness.standing.state is State.UNKNOWN


def test_attached_a_server_that_served_and_is_gone_is_dead(liveness: Liveness) -> None:
    liveness.saw_health(health(HealthKind.OK))
    liveness.saw_health(health(HealthKind.REFUSED))
    assert liveness.standing.state is State.SERVING
    liveness.saw_health(health(HealthKind.REFUSED))
    assert liveness.standing.state is State.DEAD


def test_attached_a_loading_log_is_starting(liveness: Liveness) -> None:
    liveness.saw_loading("loading weights 10 %")
    liveness.saw_health(health(HealthKind.REFUSED))
    liveness.saw_health(health(HealthKind.REFUSED))
    assert liveness.standing.state is State.STARTING


def test_a_server_that_never_answered_is_spoken_of_once(liveness: Liveness) -> None:
    said = [liveness.saw_health(health(HealthKind.REFUSED)) for _ in range(5)]
    assert said == [False, True, False, False, False]
    assert liveness.standing.state is State.UNKNOWN and liveness.standing.reason == "refused"
