"""From the configuration to notifiers: what is not configured is not imported."""

from __future__ import annotations

from collections.abc import Callable

from agent.config import Config
from agent.errors import ConfigError
from agent.model import Clock
from agent.notify.notifier import Notifier, Pusher


def build_notifiers(config: Config) -> tuple[Notifier, ...]:
    """The notifiers that the secrets allow. Raises ConfigError."""
    return (*_slack(config), *_webhook(config))


def build_pushers(config: Config, clock: Clock, observe: Callable[[str, str], None]) -> tuple[Pusher, ...]:
    """Alertmanager, where one is named; ``observe(notifier, outcome)`` counts its pushes."""
    if not config.alertmanager.urls:
        return ()
    from agent.notify.alertmanager import Alertmanager

    return (
        Alertmanager(
            config.alertmanager.urls,
            clock,
            token=config.secrets.alertmanager_token,
            resend_seconds=config.alertmanager.resend_seconds,
            observe=observe,
        ),
    )


def _webhook(config: Config) -> tuple[Notifier, ...]:
    if config.secrets.webhook_url is None:
        return ()
    from agent.notify.webhook import Webhook

    return (Webhook(config.secrets.webhook_url, config.secrets.webhook_token),)


def _slack(config: Config) -> tuple[Notifier, ...]:
    """The bot token wins over the webhook."""
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
