"""The present state of alerts and incidents at Alertmanager: told at once, again while it lasts, and at its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.config import Secret
from agent.model import AlertState, IncidentState, SystemClock, parse_rfc3339
from agent.notify import Alertmanager
from tests.journal.builders import TestClock
from tests.journal.builders import incident as make_incident
from tests.notifications.alerts import alert
from tests.notifications.receivers import Receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    one = Receiver()
    await one.start()
    yield one
    await one.stop()


class Push:
    """An Alertmanager pusher that runs on a clock the test moves."""

    def __init__(self, urls: list[str], token: str | None = None) -> None:
        self.clock = TestClock()
        secret = Secret(token, "ALERTMANAGER_TOKEN") if token else None
        self.pusher = Alertmanager(urls, self.clock, token=secret)
        self._task = asyncio.create_task(self.pusher.run())

    async def until(self, done: Callable[[], bool], seconds: int = 2000) -> None:
        for _ in range(seconds):
            for _ in range(4):
                if done():
                    return
                await asyncio.sleep(0.003)
            self.clock.advance(1)
        raise AssertionError("it did not happen")

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture
async def push(receiver: Receiver) -> AsyncIterator[Push]:
    one = Push([receiver.url], token="secret-token")
    yield one
    await one.stop()


async def test_a_firing_alert_is_pushed_with_a_lease_and_pushed_again_while_it_lasts(
    push: Push, receiver: Receiver
) -> None:
    push.pusher.saw(alert(push.clock.now()))
    await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
    first = receiver.pushed[0][0]
    assert first["labels"]["server"] == "s1" and first["labels"]["severity"] == "warning"
    lease = parse_rfc3339(first["endsAt"]) - push.clock.now()
    assert timedelta(seconds=180) < lease <= timedelta(seconds=241)
    await push.until(lambda: len(receiver.pushed) == 3, seconds=160)
    assert receiver.headers[0]["Authorization"] == "Bearer secret-token"
    assert push.pusher.status().pending == 0


async def test_a_pending_alert_is_not_pushed(push: Push, receiver: Receiver) -> None:
    push.pusher.saw(alert(push.clock.now(), AlertState.PENDING))
    for _ in range(20):
        push.clock.advance(5)
        await asyncio.sleep(0.002)
    assert receiver.attempts == 0


async def test_an_ended_alert_keeps_its_end_and_is_forgotten_after_15_minutes(push: Push, receiver: Receiver) -> None:
    began = push.clock.now()
    push.pusher.saw(alert(began))
    await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
    push.clock.advance(30)
    push.pusher.saw(alert(began, AlertState.RESOLVED, ended=push.clock.now()))
    await push.until(lambda: len(receiver.pushed) == 2, seconds=2)
    told = receiver.pushed[1][0]
    assert parse_rfc3339(told["endsAt"]) <= push.clock.now()
    assert told["startsAt"] == receiver.pushed[0][0]["startsAt"]
    for _ in range(1000):
        push.clock.advance(1)
        await asyncio.sleep(0.0005)
    count = len(receiver.pushed)
    assert count >= 10
    for _ in range(200):
        push.clock.advance(1)
        await asyncio.sleep(0.0005)
    assert len(receiver.pushed) == count


async def test_one_that_is_down_gets_the_present_state_when_it_is_back_and_delays_no_other(receiver: Receiver) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    push = Push([dead, receiver.url])
    try:
        push.pusher.saw(alert(push.clock.now()))
        await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
        await push.until(lambda: push.pusher.status().error is not None)
        assert dead in str(push.pusher.status().error)
        assert push.pusher.status().pending == 1
    finally:
        await push.stop()


async def test_an_outage_ends_with_the_newest_state(push: Push, receiver: Receiver) -> None:
    receiver.status = 503
    began = push.clock.now()
    push.pusher.saw(alert(began))
    await push.until(lambda: receiver.attempts >= 3)
    push.pusher.saw(alert(began, AlertState.RESOLVED, ended=push.clock.now()))
    receiver.status = 200
    await push.until(lambda: bool(receiver.pushed))
    assert [len(batch) for batch in receiver.pushed] == [1]
    assert parse_rfc3339(receiver.pushed[0][0]["endsAt"]) <= push.clock.now()
    await push.until(lambda: push.pusher.status().error is None)


async def test_a_refused_alert_holds_back_no_other(push: Push, receiver: Receiver) -> None:
    receiver.refuse = {"Odd"}
    for name in ("A", "Odd", "B"):
        push.pusher.saw(alert(push.clock.now(), name=name))
    await push.until(lambda: len(receiver.names()) == 2)
    assert sorted(receiver.names()) == ["A", "B"]
    status = push.pusher.status()
    assert status.parked == 1 and "400" in str(status.error)


async def test_an_incident_is_an_alert_that_ends_with_it(push: Push, receiver: Receiver) -> None:
    incident = make_incident("i-1")
    push.pusher.saw(incident)
    await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
    labels = receiver.pushed[0][0]["labels"]
    assert labels["alertname"] == "VLLMIncident" and labels["class"] == incident.fault and labels["incident"] == "i-1"
    closed = make_incident("i-1", state=IncidentState.RESOLVED)
    push.pusher.saw(closed)
    await push.until(lambda: len(receiver.pushed) == 2, seconds=2)
    assert receiver.pushed[1][0]["labels"] == labels
    assert parse_rfc3339(receiver.pushed[1][0]["endsAt"]) <= push.clock.now()


async def test_a_secret_in_a_text_does_not_leave(push: Push, receiver: Receiver) -> None:
    push.pusher.saw(alert(push.clock.now(), description="started with --api-key sk-very-secret-value"))
    await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
    assert "sk-very-secret-value" not in json.dumps(receiver.pushed)


@pytest.fixture
def real_alertmanager(tmp_path: Path) -> Iterator[str]:
    """Debian's Alertmanager on loopback."""
    program = shutil.which("prometheus-alertmanager")
    if program is None:
        pytest.skip("prometheus-alertmanager is not installed")
    config = tmp_path / "am.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, f"--config.file={config}", f"--storage.path={tmp_path / 'am'}"]
    command += [f"--web.listen-address={address}", "--cluster.listen-address="]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"http://{address}"
    process.kill()
    process.wait()


async def test_the_real_alertmanager_takes_holds_and_ends_them(real_alertmanager: str) -> None:
    clock = SystemClock()
    pusher = Alertmanager([real_alertmanager], clock)
    task = asyncio.create_task(pusher.run())
    try:
        began = clock.now() - timedelta(seconds=5)
        pusher.saw(alert(began))
        pusher.saw(make_incident("i-9"))
        held = await _alerts(real_alertmanager, 2)
        assert {one["labels"]["alertname"] for one in held} == {"VLLMTimeToFirstTokenHigh", "VLLMIncident"}
        assert all(one["status"]["state"] == "active" for one in held)
        pusher.saw(alert(began, AlertState.RESOLVED, ended=clock.now()))
        held = await _alerts(real_alertmanager, 1)
        assert [one["labels"]["alertname"] for one in held] == ["VLLMIncident"]
        assert pusher.status().error is None
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _alerts(url: str, count: int) -> list[dict[str, Any]]:
    """The active alerts, as soon as there are ``count`` of them."""
    held: list[dict[str, Any]] = []
    async with aiohttp.ClientSession() as session:
        for _ in range(300):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/api/v2/alerts?active=true") as response:
                    held = await response.json()
                if len(held) == count:
                    return held
            await asyncio.sleep(0.1)
    raise AssertionError(f"{len(held)} alerts instead of {count}: {held}")


async def test_an_end_of_before_is_not_sent_again_once_it_fires_anew(push: Push, receiver: Receiver) -> None:
    """Alertmanager keeps one alert of a label set: an older end that is sent again would end the one that fires."""
    began = push.clock.now()
    push.pusher.saw(alert(began))
    await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
    push.clock.advance(5)
    push.pusher.saw(alert(began, AlertState.RESOLVED, ended=push.clock.now()))
    await push.until(lambda: len(receiver.pushed) == 2, seconds=2)
    push.clock.advance(5)
    again = push.clock.now()
    push.pusher.saw(alert(again))
    await push.until(lambda: len(receiver.pushed) == 3, seconds=2)
    await push.until(lambda: len(receiver.pushed) >= 5, seconds=200)
    later = [one["startsAt"] for batch in receiver.pushed[3:] for one in batch]
    assert set(later) == {receiver.pushed[2][0]["startsAt"]}


async def test_a_start_that_lies_ahead_of_a_clock_set_back_is_sent_as_now(push: Push, receiver: Receiver) -> None:
    """Alertmanager refuses an alert that ends before it starts."""
    push.pusher.saw(alert(push.clock.now() + timedelta(hours=1)))
    await push.until(lambda: len(receiver.pushed) == 1, seconds=2)
    told = receiver.pushed[0][0]
    assert parse_rfc3339(told["startsAt"]) <= parse_rfc3339(told["endsAt"])
    assert parse_rfc3339(told["startsAt"]) <= push.clock.now()
