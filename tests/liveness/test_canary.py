"""Canaries: whom they ask, how often, with what, and what their answers are worth."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from agent.collect import Canary, CanaryOutcome, HealthKind
from agent.model import State
from agent.watch.liveness import Child
from agent.watch.shape import Shape
from tests.liveness.world import FakeEngine, HandClock, World

Reply = tuple[int, object] | Exception
MODELS: Reply = (200, {"data": [{"id": "m"}]})


class Server:
    """Answers by path; what is not in the table is 404."""

    def __init__(self, replies: Mapping[str, Reply]) -> None:
        self.replies = {"/v1/models": MODELS, **replies}
        self.asked: list[tuple[str, Mapping[str, Any] | None, Mapping[str, str] | None]] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> tuple[int, bytes]:
        self.asked.append((path, body, headers))
        reply = self.replies.get(path, (404, {}))
        if isinstance(reply, Exception):
            raise reply
        return reply[0], json.dumps(reply[1]).encode()

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]


async def ask(server: Server, canary: Canary | None = None, **options: bool):  # type: ignore[no-untyped-def]
    return await (canary or Canary(server, HandClock())).ask("0", **options)


async def test_one_token_is_asked_and_the_endpoint_is_remembered() -> None:
    server = Server({"/v1/completions": (200, {})})
    canary = Canary(server, HandClock())
    assert (await ask(server, canary)).outcome is CanaryOutcome.ANSWERED
    assert (await ask(server, canary)).outcome is CanaryOutcome.ANSWERED
    assert server.paths == ["/is_paused", "/v1/models", "/v1/completions", "/v1/completions"]
    body = server.asked[-1][1]
    assert body is not None and body["max_tokens"] == 1 and not server.asked[-1][2]


async def test_an_embedding_server_is_asked_for_an_embedding() -> None:
    server = Server({"/v1/embeddings": (200, {})})
    canary = Canary(server, HandClock())
    assert (await ask(server, canary)).outcome is CanaryOutcome.ANSWERED
    await ask(server, canary)
    assert server.paths[-1] == server.paths[-2] == "/v1/embeddings", "learned once"


async def test_a_rank_is_named_only_where_there_are_several() -> None:
    server = Server({"/v1/completions": (200, {})})
    await Canary(server, HandClock()).ask("3", several=True)
    assert server.asked[-1][2] == {"X-data-parallel-rank": "3"}


async def test_a_paused_server_is_not_asked() -> None:
    server = Server({"/is_paused": (200, {"is_paused": True})})
    result = await ask(server)
    assert (result.outcome, result.paused) == (CanaryOutcome.NOT_SENT, True)
    assert server.paths == ["/is_paused"]


@pytest.mark.parametrize(
    ("replies", "outcome", "lasting"),
    [
        ({"/v1/completions": asyncio.TimeoutError()}, CanaryOutcome.TIMEOUT, False),
        ({"/v1/completions": (503, {})}, CanaryOutcome.REFUSED, False),
        ({"/v1/completions": (500, {})}, CanaryOutcome.REFUSED, False),
        ({"/v1/completions": aiohttp.ServerDisconnectedError()}, CanaryOutcome.REFUSED, False),
        ({"/v1/completions": (401, {})}, CanaryOutcome.NOT_SENT, True),
        ({"/v1/models": (401, {})}, CanaryOutcome.NOT_SENT, False),
        ({"/v1/models": asyncio.TimeoutError()}, CanaryOutcome.NOT_SENT, False),
        ({"/v1/models": (200, "no list")}, CanaryOutcome.NOT_SENT, False),
        ({}, CanaryOutcome.NOT_SENT, True),
    ],
)
async def test_every_end_is_an_outcome(replies: Mapping[str, Reply], outcome: CanaryOutcome, lasting: bool) -> None:
    result = await ask(Server(replies))
    assert (result.outcome, result.lasting) == (outcome, lasting), result.detail


def test_at_most_one_in_ten_seconds_and_an_idle_engine_every_fifteen() -> None:
    world = World(engines=[FakeEngine(str(rank), 100 * (rank + 1)) for rank in range(4)])
    world.run(300)
    assert all(after - before >= 10 for before, after in zip(world.sent, world.sent[1:], strict=False))
    assert set(world.canaries) == {"0", "1", "2", "3"}
    alone = World()
    alone.run(300)
    assert 17 <= len(alone.sent) <= 20


def test_an_engine_with_traffic_is_not_asked() -> None:
    world = World()
    world.engine.decoding = 1
    world.run(300)
    assert not world.canaries


@pytest.mark.parametrize("health", [HealthKind.REFUSED, HealthKind.TIMEOUT, HealthKind.ENGINE_DEAD])
def test_a_server_that_is_not_up_is_not_asked(health: HealthKind) -> None:
    world = World(health=health)
    world.run(60)
    assert not world.canaries


@pytest.mark.parametrize("child", [Child.STARTING, Child.DRAINING, Child.STOPPED, Child.DEAD])
def test_a_server_that_starts_or_ends_is_not_asked(child: Child) -> None:
    world = World()
    world.liveness.saw_child(child)
    world.run(60)
    assert not world.canaries


def test_a_paused_server_is_left_alone_and_asked_again_after_it() -> None:
    world = World(paused=True)
    world.liveness.saw_paused(True)
    world.run(60)
    assert not world.canaries
    world.paused = False
    world.liveness.saw_paused(False)
    world.run(40)
    assert world.canaries


def test_one_side_of_a_disaggregated_pair_is_not_asked_and_that_is_said() -> None:
    world = World()
    world.liveness.saw_shape(Shape(role="prefill"))
    world.run(60)
    assert not world.canaries
    reason = world.liveness.canary_not_measured
    assert reason is not None and "prefill side" in reason.reason


def test_canaries_that_time_out_prove_nothing_where_no_process_is_seen() -> None:
    """The first step of a long prompt shows no running request either."""
    world = World(sees_processes=False, launched=False)
    world.run(20)
    world.engine.steps = False
    world.run(300)
    assert State.STALLED not in world.seen and world.state is State.UNKNOWN
    assert "canary" in world.reason


def test_a_server_without_series_is_asked_and_a_stopped_process_is_found() -> None:
    """--disable-log-stats: no vllm:* series at all."""
    from agent.collect import Health

    world = World()
    live, clock = world.liveness, world.clock
    states, under_way = [], None
    for second in range(80):
        clock.seconds += 1
        world.engine.second(clock.seconds)
        world.engine.state = "S" if second < 40 else "T"
        live.saw_health(Health(kind=HealthKind.OK, detail="ok", at=clock.seconds))
        live.saw_engines((), clock.seconds)
        live.saw_activity(world.reading(), world.gpu, clock.seconds)
        live.saw_paused(False)
        wanted = live.wants_canary(clock.seconds)
        if wanted is not None:
            live.canary_sent(wanted, clock.seconds)
            under_way = clock.seconds
        if under_way is not None and world.engine.works:
            world.ended("0", under_way, CanaryOutcome.ANSWERED)
            under_way = None
        states.append(live.standing.state)
    assert set(states[:40]) == {State.SERVING}
    assert State.STALLED in states[40:70]
