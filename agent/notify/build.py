"""From the configuration to notifiers: what is not configured is not imported."""

from __future__ import annotations

from agent.config import Config
from agent.errors import ConfigError
from agent.notify.notifier import Notifier


def build_notifiers(config: Config) -> tuple[Notifier, ...]:
    """The notifiers that the secrets allow; the bot token wins over the webhook. Raises ConfigError."""
    secrets, slack = config.secrets, config.slack
    if not slack.enabled or (secrets.slack_bot_token is None and secrets.slack_webhook_url is None):
        return ()
    from agent.notify.slack import SlackBot, SlackWebhook

    if secrets.slack_bot_token is not None:
        if slack.channel_id is None:
            raise ConfigError(
                "there is a Slack bot token but no channel",
                where="slack.channel_id",
                remedy="set slack.channel_id (C…) or VLLM_AGENT__SLACK__CHANNEL_ID",
            )
        return (SlackBot(secrets.slack_bot_token, slack.channel_id, slack.api_url, config.runbook_base_url),)
    assert secrets.slack_webhook_url is not None
    return (SlackWebhook(secrets.slack_webhook_url, config.runbook_base_url),)
