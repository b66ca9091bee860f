"""A round costs one GET where nothing else can be learned, and a dead engine is still seen at once where it matters."""

from __future__ import annotations

from pathlib import Path

from agent.model import State
from agent.watch.asking import ATTACHED_SECONDS, OWNED_SECONDS
from agent.watch.world import ServerSpec
from tests.watching.conftest import Served
from tests.watching.server import Answers, serving
from tests.watching.watcher import Watching, watching


def gauges(running: int) -> str:
    return f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'


async def rounds(server: Answers, watch: Watching, count: int) -> tuple[int, int]:
    """How often /metrics and /health were asked in the next rounds."""
    scrapes, healths = server.scrapes, server.healths
    await watch.until(lambda: server.scrapes >= scrapes + count)
    return server.scrapes - scrapes, server.healths - healths


async def settled(server: Answers, watch: Watching, running: int = 0) -> None:
    server.series = gauges(running)
    await watch.until(lambda: watch.watch.evidence.load is not None)


async def test_a_server_that_serves_costs_one_get_in_most_rounds(served: Served) -> None:
    await settled(served.server, served.watch)
    await rounds(served.server, served.watch, 2)
    scrapes, healths = await rounds(served.server, served.watch, 12)
    assert healths <= 2 < scrapes, "a loaded machine may take seconds for twelve rounds"
    seen = served.server.healths
    served.watch.clock.leap(OWNED_SECONDS + 0.1)
    await served.watch.until(lambda: served.server.healths > seen)


async def test_work_that_does_not_move_is_asked_for_in_every_round(served: Served) -> None:
    await settled(served.server, served.watch, running=1)
    served.server.stuck = True
    served.watch.clock.leap(3)
    await served.watch.until(lambda: served.watch.watch.evidence.stands_still(served.watch.clock.monotonic()))
    scrapes, healths = await rounds(served.server, served.watch, 6)
    assert healths >= scrapes - 1


async def test_without_series_health_is_all_there_is(served: Served) -> None:
    scrapes, healths = await rounds(served.server, served.watch, 6)
    assert healths >= scrapes - 1, "its /metrics tells of no requests"


async def test_an_engine_that_dies_without_work_is_seen(served: Served) -> None:
    await settled(served.server, served.watch)
    served.server.health = 503
    served.watch.clock.leap(OWNED_SECONDS + 0.1)
    await served.watch.state(State.DEAD)


async def test_an_attached_server_is_asked_more_often(tmp_path: Path) -> None:
    async with serving() as server:
        server.series = gauges(0)
        async with watching(ServerSpec(name="far", url=server.url), tmp_path / "state") as watch:
            await watch.state(State.SERVING)
            await settled(server, watch)
            server.health = 503
            watch.clock.leap(ATTACHED_SECONDS + 0.1)
            await watch.state(State.DEAD)
