"""A stand-in Slack, and a dispatcher whose time a test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.config import Secret
from agent.journal import Journal
from agent.notify import Dispatcher, Notifier, SlackBot, SlackWebhook
from tests.journal.builders import TestClock
from tests.notifications.standin import SlackStandIn


class Desk:
    """A journal with a dispatcher that can be killed and begun again."""

    def __init__(self, folder: Path, clock: TestClock, make: Callable[[], Notifier]) -> None:
        self.clock = clock
        self.outcomes: list[str] = []
        self._folder = folder
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self.journal = Journal.open(folder, clock)
        self.start()

    def start(self) -> None:
        observe = lambda notifier, outcome: self.outcomes.append(outcome)  # noqa: E731
        self.dispatcher = Dispatcher(self.journal, [self._make()], self.clock, observe=observe)
        self._task = asyncio.create_task(self.dispatcher.run())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def restart(self) -> None:
        await self.stop()
        self.journal.close()
        self.journal = Journal.open(self._folder, self.clock)
        self.start()

    async def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Move the clock in steps, letting real sockets answer in between."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await self.settle()

    async def settle(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0.002)

    async def until(self, done: Callable[[], bool], seconds: float = 1500) -> None:
        """Move the clock until something is true."""
        for _ in range(round(seconds)):
            for _ in range(5):
                if done():
                    return
                await asyncio.sleep(0.003)
            self.clock.advance(1)
        raise AssertionError("it did not happen")

    @property
    def idle(self) -> bool:
        return not any(status.pending for status in self.dispatcher.status())


@pytest.fixture
async def slack() -> AsyncIterator[SlackStandIn]:
    standin = SlackStandIn()
    await standin.start()
    yield standin
    await standin.stop()


@pytest.fixture
async def bot(slack: SlackStandIn, tmp_path: Path) -> AsyncIterator[Desk]:
    token = Secret("xoxb-test", "SLACK_BOT_TOKEN")
    desk = Desk(tmp_path, TestClock(), lambda: SlackBot(token, "C0123", f"{slack.url}/api"))
    yield desk
    await desk.stop()
    desk.journal.close()


@pytest.fixture
async def hook(slack: SlackStandIn, tmp_path: Path) -> AsyncIterator[Desk]:
    url = Secret(f"{slack.url}/hook", "SLACK_WEBHOOK_URL")
    desk = Desk(tmp_path, TestClock(), lambda: SlackWebhook(url))
    yield desk
    await desk.stop()
    desk.journal.close()
