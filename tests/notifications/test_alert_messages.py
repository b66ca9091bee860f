"""Alerts as messages: in Slack once and edited, by webhook at both ends, information never."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from agent.config import Secret
from agent.model import AlertState
from agent.notify import Webhook
from tests.journal.builders import TestClock
from tests.journal.builders import incident as make_incident
from tests.notifications.alerts import alert
from tests.notifications.conftest import Desk
from tests.notifications.receivers import Receiver
from tests.notifications.standin import SlackStandIn


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    one = Receiver()
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def web(receiver: Receiver, tmp_path: Path) -> AsyncIterator[Desk]:
    url = Secret(f"{receiver.url}/hook", "ALERT_WEBHOOK_URL")
    desk = Desk(tmp_path, TestClock(), lambda: Webhook(url, Secret("door", "ALERT_WEBHOOK_TOKEN")))
    yield desk
    await desk.stop()
    desk.journal.close()


async def test_slack_shows_one_message_for_an_alert_and_edits_it_at_its_end(bot: Desk, slack: SlackStandIn) -> None:
    began = bot.clock.now()
    bot.dispatcher.publish(alert(began))
    await bot.until(lambda: bot.idle)
    bot.dispatcher.publish(alert(began))
    bot.dispatcher.publish(alert(began, AlertState.RESOLVED, ended=began + timedelta(seconds=90)))
    await bot.until(lambda: bot.idle)
    assert [method for method, _ in slack.delivered] == ["chat.postMessage", "chat.update"]
    assert len(slack.messages) == 1
    assert slack.texts()[0].startswith("resolved: VLLMTimeToFirstTokenHigh on s1")


async def test_the_second_firing_of_an_alert_is_a_message_of_its_own(bot: Desk, slack: SlackStandIn) -> None:
    began = bot.clock.now()
    bot.dispatcher.publish(alert(began))
    bot.dispatcher.publish(alert(began + timedelta(seconds=600)))
    await bot.until(lambda: bot.idle)
    assert len(slack.messages) == 2


async def test_a_slack_webhook_says_both_ends(hook: Desk, slack: SlackStandIn) -> None:
    began = hook.clock.now()
    hook.dispatcher.publish(alert(began))
    hook.dispatcher.publish(alert(began, AlertState.RESOLVED, ended=began + timedelta(seconds=90)))
    await hook.until(lambda: hook.idle)
    assert [one["text"].split(":")[0] for one in slack.hooked] == ["firing", "resolved"]


async def test_what_pends_or_merely_informs_is_no_message(bot: Desk, slack: SlackStandIn) -> None:
    bot.dispatcher.publish(alert(bot.clock.now(), AlertState.PENDING))
    bot.dispatcher.publish(alert(bot.clock.now(), severity="info"))
    await bot.settle()
    assert bot.idle and slack.attempts == 0


async def test_a_webhook_gets_what_alertmanager_would_send_it(web: Desk, receiver: Receiver) -> None:
    began = web.clock.now()
    web.dispatcher.publish(alert(began))
    web.dispatcher.publish(make_incident("i-1"))
    await web.until(lambda: web.idle)
    fired, incident = receiver.hooked
    assert (fired["version"], fired["status"]) == ("4", "firing")
    assert fired["alerts"][0]["labels"]["alertname"] == "VLLMTimeToFirstTokenHigh"
    assert fired["agent"]["kind"] == "alert" and fired["agent"]["alert"]["value"] == 2.1
    assert incident["agent"]["incident"]["id"] == "i-1"
    assert receiver.headers[0]["Authorization"] == "Bearer door"


async def test_a_webhook_that_is_down_is_asked_again_and_a_refusal_is_kept(web: Desk, receiver: Receiver) -> None:
    receiver.status = 503
    web.dispatcher.publish(alert(web.clock.now()))
    await web.until(lambda: receiver.attempts >= 2)
    receiver.status = 200
    await web.until(lambda: len(receiver.hooked) == 1)
    receiver.status = 410
    web.dispatcher.publish(alert(web.clock.now(), name="Other"))
    await web.until(lambda: web.dispatcher.status()[0].parked == 1)
    assert "410" in str(web.dispatcher.status()[0].error)


async def test_a_restart_repeats_no_alert(web: Desk, receiver: Receiver) -> None:
    began = web.clock.now()
    web.dispatcher.publish(alert(began))
    await web.until(lambda: len(receiver.hooked) == 1)
    await web.restart()
    web.dispatcher.publish(alert(began))
    await web.settle(20)
    assert len(receiver.hooked) == 1
