"""Delivery: one message per incident, once, in order, through every kind of trouble at the receiver."""

from __future__ import annotations

import pytest

from agent.model import ActionState, IncidentState
from tests.journal.builders import action, incident
from tests.notifications.conftest import Desk
from tests.notifications.standin import SlackStandIn

LIFE = [IncidentState.OPEN, IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.RESOLVED]


async def test_one_message_is_edited_as_the_incident_lives(bot: Desk, slack: SlackStandIn) -> None:
    for number, state in enumerate(LIFE):
        bot.dispatcher.publish(incident("i-1", state))
        await bot.until(lambda wanted=number + 1: len(slack.delivered) == wanted)  # type: ignore[misc]
    assert [method for method, _ in slack.delivered] == ["chat.postMessage"] + ["chat.update"] * 3
    assert len(slack.messages) == 1 and slack.texts()[0].startswith("resolved: oom-serving")
    assert slack.tokens == {"Bearer xoxb-test"}


async def test_the_same_content_is_sent_once_and_a_changed_one_again(bot: Desk, slack: SlackStandIn) -> None:
    for _ in range(3):
        bot.dispatcher.publish(incident("i-1"))
    await bot.until(lambda: len(slack.delivered) == 1)
    bot.dispatcher.publish(incident("i-1"))
    changed = action("a-1", state=ActionState.FAILED, outcome="died again")
    bot.dispatcher.publish(incident("i-1", actions=(changed,)))
    await bot.until(lambda: len(slack.delivered) == 2)
    await bot.pass_time(5)
    assert [method for method, _ in slack.delivered] == ["chat.postMessage", "chat.update"]


async def test_slack_down_for_ten_minutes_gets_the_newest_state_once_and_in_order(
    bot: Desk, slack: SlackStandIn
) -> None:
    slack.mode = "down"
    for state in LIFE[:3]:
        bot.dispatcher.publish(incident("i-1", state))
        bot.dispatcher.publish(incident("i-2", state))
        await bot.pass_time(200, step=5)
    assert slack.delivered == [] and 5 < slack.attempts < 60
    assert bot.dispatcher.status()[0].error
    slack.mode = "ok"
    await bot.until(lambda: bot.idle)
    assert [method for method, _ in slack.delivered] == ["chat.postMessage"] * 2
    assert all(text.startswith("verifying") for text in slack.texts())
    assert bot.dispatcher.status()[0].error is None


async def test_a_restart_in_between_neither_loses_nor_repeats(bot: Desk, slack: SlackStandIn) -> None:
    bot.dispatcher.publish(incident("i-1", IncidentState.OPEN))
    await bot.until(lambda: len(slack.delivered) == 1)
    slack.mode = "down"
    bot.dispatcher.publish(incident("i-1", IncidentState.RESOLVED))
    bot.dispatcher.publish(incident("i-2", IncidentState.OPEN))
    await bot.pass_time(20, step=5)
    await bot.restart()
    slack.mode = "ok"
    bot.dispatcher.publish(incident("i-1", IncidentState.RESOLVED))
    await bot.until(lambda: bot.idle)
    assert [(method, text.split(":")[0]) for method, text in slack.delivered] == [
        ("chat.postMessage", "open"),
        ("chat.update", "resolved"),
        ("chat.postMessage", "open"),
    ]
    await bot.restart()
    await bot.pass_time(60, step=5)
    assert len(slack.delivered) == 3


async def test_a_storm_of_429_waits_as_long_as_it_says(bot: Desk, slack: SlackStandIn) -> None:
    slack.mode = "429"
    for number in range(5):
        bot.dispatcher.publish(incident(f"i-{number}"))
    await bot.pass_time(100)
    assert 1 <= slack.attempts <= 5  # every 30 s, whatever the number of messages
    slack.mode = "ok"
    await bot.until(lambda: bot.idle)
    assert len(slack.messages) == 5 and len(slack.delivered) == 5


async def test_messages_leave_at_the_pace_that_slack_allows(bot: Desk, slack: SlackStandIn) -> None:
    for number in range(5):
        bot.dispatcher.publish(incident(f"i-{number}"))
    await bot.settle(20)
    assert len(slack.delivered) == 1
    await bot.pass_time(3)
    assert len(slack.delivered) <= 4
    await bot.until(lambda: bot.idle)
    assert len(slack.delivered) == 5


async def test_a_server_error_with_html_is_tried_again(bot: Desk, slack: SlackStandIn) -> None:
    slack.mode = "500"
    bot.dispatcher.publish(incident("i-1"))
    await bot.pass_time(3)
    assert "failed" in bot.outcomes and "parked" not in bot.outcomes
    slack.mode = "ok"
    await bot.until(lambda: bot.idle)
    assert len(slack.delivered) == 1


@pytest.mark.parametrize("code", ["invalid_auth", "channel_not_found", "not_in_channel", "invalid_blocks"])
async def test_a_refusal_for_good_is_reported_once_and_kept(
    bot: Desk, slack: SlackStandIn, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    slack.mode = code
    for number in range(3):
        bot.dispatcher.publish(incident(f"i-{number}"))
    await bot.until(lambda: bot.outcomes.count("parked") == 3)
    await bot.pass_time(120, step=10)
    assert slack.attempts == 3
    assert [code in record.getMessage() for record in caplog.records] == [True]
    status = bot.dispatcher.status()[0]
    assert (status.pending, status.parked) == (0, 3) and code in str(status.error)
    slack.mode = "ok"  # the token was replaced, the agent started again
    await bot.restart()
    await bot.until(lambda: len(slack.messages) == 3)


async def test_a_message_that_somebody_deleted_is_posted_anew(bot: Desk, slack: SlackStandIn) -> None:
    bot.dispatcher.publish(incident("i-1"))
    await bot.until(lambda: len(slack.delivered) == 1)
    slack.messages.clear()
    bot.dispatcher.publish(incident("i-1", IncidentState.RESOLVED))
    await bot.until(lambda: len(slack.delivered) == 2)
    bot.dispatcher.publish(incident("i-1", IncidentState.RESOLVED, note="checked by hand"))
    await bot.until(lambda: len(slack.delivered) == 3)
    assert [method for method, _ in slack.delivered] == [
        "chat.postMessage",
        "chat.postMessage",
        "chat.update",
    ]


async def test_a_webhook_says_the_beginning_and_the_end(hook: Desk, slack: SlackStandIn) -> None:
    for state in LIFE:
        hook.dispatcher.publish(incident("i-1", state))
        await hook.pass_time(5)
    await hook.until(lambda: hook.idle)
    assert [message["text"].split(":")[0] for message in slack.hooked] == ["open", "resolved"]
    await hook.restart()
    hook.dispatcher.publish(incident("i-1", IncidentState.RESOLVED))
    await hook.pass_time(10)
    assert len(slack.hooked) == 2


async def test_a_webhook_begins_with_the_cause_and_not_with_the_first_guess(hook: Desk, slack: SlackStandIn) -> None:
    hook.dispatcher.publish(incident("i-1", fault="engine-dead", summary="the log is being read"))
    await hook.settle(10)
    hook.dispatcher.publish(incident("i-1", fault="oom-serving"))
    await hook.until(lambda: hook.idle)
    hook.dispatcher.publish(incident("i-1", fault="engine-dead"))
    await hook.pass_time(5)
    assert [message["text"].split(".")[0] for message in slack.hooked] == ["open: oom-serving on chat"]


async def test_a_webhook_that_was_down_says_both_in_order(hook: Desk, slack: SlackStandIn) -> None:
    slack.mode = "down"
    hook.dispatcher.publish(incident("i-1", IncidentState.OPEN))
    hook.dispatcher.publish(incident("i-1", IncidentState.UNRESOLVED))
    await hook.pass_time(600, step=10)
    slack.mode = "ok"
    await hook.until(lambda: hook.idle)
    assert [message["text"].split(":")[0] for message in slack.hooked] == ["open", "unresolved"]


async def test_a_webhook_that_was_removed_is_parked(hook: Desk, slack: SlackStandIn) -> None:
    slack.mode = "no_service"
    hook.dispatcher.publish(incident("i-1"))
    await hook.until(lambda: "parked" in hook.outcomes)
    assert "no_service" in str(hook.dispatcher.status()[0].error)


async def test_publishing_never_waits_for_a_dead_receiver(bot: Desk, slack: SlackStandIn) -> None:
    await slack.stop()
    for number in range(50):
        bot.dispatcher.publish(incident(f"i-{number}"))
    await bot.settle()
    assert bot.dispatcher.status()[0].pending == 50
    await slack.start()  # on another port, for the fixture's end
