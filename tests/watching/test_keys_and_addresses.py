"""A server that wants a key, moves its port, or closes under a request."""

from __future__ import annotations

import asyncio

import aiohttp

from agent.collect import HealthKind, Target, VllmClient
from agent.model import IncidentState, NotMeasured, State
from tests.watching.conftest import Served
from tests.watching.server import serving
from tests.watching.watcher import LeapClock


async def test_a_repair_holds_where_the_key_is_not_known_and_says_what_it_could_not_prove(served: Served) -> None:
    served.server.key = "secret"
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.RESOLVED
    proofs = {proof.kind: proof for proof in incident.actions[0].proof}
    assert proofs["request-answered"].passed is None
    assert "VLLM_API_KEY" in str(proofs["request-answered"].detail)


async def test_with_the_key_the_request_is_proven() -> None:
    async with serving() as server:
        server.key = "secret"
        async with VllmClient(Target(url=server.url, api_key="secret"), LeapClock()) as client:
            assert (await client.ask()).answered is True
        async with VllmClient(Target(url=server.url, api_key="wrong"), LeapClock()) as client:
            assert (await client.ask()).answered is None


async def test_a_new_launchers_port_is_followed_and_the_old_client_closed(served: Served) -> None:
    old = served.watch.watch.evidence.client
    async with serving() as other:
        served.launcher.url = other.url
        served.launcher.end(0)
        await served.watch.closed()
        await served.watch.state(State.SERVING)
        client = served.watch.watch.evidence.client
        assert client is not None and client is not old and client.url == other.url
        assert old is not None and old._session is None


async def test_a_client_closed_under_its_user_gives_readings() -> None:
    async with serving() as server:
        client = await VllmClient(Target(url=server.url), LeapClock()).__aenter__()
        await client.close()
        assert (await client.health()).kind is HealthKind.REFUSED
        assert isinstance(await client.scrape(), NotMeasured)
        assert (await client.ask()).answered is False


async def test_the_end_of_a_watch_closes_its_client_and_leaves_no_task(served: Served) -> None:
    sessions: list[aiohttp.ClientSession] = []
    client = served.watch.watch.evidence.client
    assert client is not None and client._session is not None
    sessions.append(client._session)
    await served.watch.watch.source.close()
    await asyncio.sleep(0)
    assert sessions[0].closed and served.watch.watch.evidence.client is None
