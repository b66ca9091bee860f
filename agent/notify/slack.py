"""Slack by bot token (one message per incident, edited) or by webhook (one at open, one at the end).

In: an incident, or an alert that pages or makes a ticket. Out: a message in Slack, or NotifyError that says whether
trying again can help. slack_sdk does the talking (its own retries off: the dispatcher's are kept on disk) and is
imported when a notifier is made. Refusals that no retry cures are named after Slack's own error codes
(docs.slack.dev, chat.postMessage).
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from agent.config import Secret
from agent.errors import NotifyError
from agent.model import Incident
from agent.notify.alert_message import alert_topic, render_alert, worth_telling
from agent.notify.message import Message, render
from agent.notify.notifier import Phase, Subject

TIMEOUT_SECONDS = 10
MIN_INTERVAL_SECONDS = 1.1  # Slack allows about one message per second and channel
# The first word of an incident is often "the server died"; its cause and what waits for approval follow within seconds,
# and a webhook's message cannot be edited.
SETTLE_SECONDS = 3.0
_TRANSIENT = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable", "request_timeout",
     "team_added_to_org", "message_limit_exceeded", "rollup_error"}
)  # fmt: skip
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
_FAULTS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class SlackBot:
    """chat.postMessage, then chat.update; needs the channel's id."""

    name = "slack"
    min_interval_seconds = MIN_INTERVAL_SECONDS

    def __init__(
        self, token: Secret, channel_id: str, api_url: str | None = None, runbook_base_url: str | None = None
    ) -> None:
        from slack_sdk.web.async_client import AsyncWebClient

        self._channel = channel_id
        self._runbooks = runbook_base_url
        base_url = (api_url or AsyncWebClient.BASE_URL).rstrip("/") + "/"
        self._client = AsyncWebClient(
            token=token.reveal(), base_url=base_url, timeout=TIMEOUT_SECONDS, retry_handlers=[]
        )

    def phase(self, subject: Subject) -> Phase | None:
        """Every change of what people see, once."""
        if isinstance(subject, Incident):
            content = render(subject, self._runbooks)
            return Phase(subject.id, f"{subject.id}:{subject.state.value}:{content.fingerprint}")
        if not worth_telling(subject):
            return None
        topic = alert_topic(subject)
        return Phase(topic, f"{topic}:{subject.state.value}")

    async def deliver(self, subject: Subject, ref: str | None) -> str | None:
        """Post, or edit the message with the timestamp ``ref``; a message that is gone is posted anew."""
        message = _message(subject, self._runbooks)
        content: dict[str, Any] = {"channel": self._channel, "text": message.text, "blocks": message.blocks}
        if ref is not None:
            edited = await self._call("chat.update", {**content, "ts": ref})
            if edited is not None:
                return edited
        return await self._call("chat.postMessage", {**content, "unfurl_links": False})

    async def close(self) -> None:
        """The client opens a session for each call and closes it itself."""

    async def _call(self, method: str, content: dict[str, Any]) -> str | None:
        """The message's timestamp; None where the message to edit is gone. Raises NotifyError."""
        from slack_sdk.errors import SlackApiError

        try:
            answer = await self._client.api_call(method, json=content)
        except SlackApiError as error:
            code = _code(error.response)
            if method == "chat.update" and code in _GONE:
                return None
            raise _refusal(code, int(error.response.status_code or 0), dict(error.response.headers)) from None
        except _FAULTS as error:
            raise NotifyError(f"Slack does not answer: {type(error).__name__}") from None
        return str(answer.get("ts") or content.get("ts") or "") or None


class SlackWebhook:
    """An incoming webhook: cannot edit, so it says the beginning and the end."""

    name = "slack-webhook"
    min_interval_seconds = MIN_INTERVAL_SECONDS

    def __init__(self, url: Secret, runbook_base_url: str | None = None) -> None:
        from slack_sdk.webhook.async_client import AsyncWebhookClient

        self._runbooks = runbook_base_url
        self._client = AsyncWebhookClient(url.reveal(), timeout=TIMEOUT_SECONDS, retry_handlers=[])

    def phase(self, subject: Subject) -> Phase | None:
        """Once at open, once at each end; both are topics of their own, so neither replaces the other."""
        if isinstance(subject, Incident):
            key = f"{subject.id}:{subject.state.value if subject.state.closed else 'open'}"
            return Phase(key, key, SETTLE_SECONDS)
        if not worth_telling(subject):
            return None
        key = f"{alert_topic(subject)}:{subject.state.value}"
        return Phase(key, key)

    async def deliver(self, subject: Subject, ref: str | None) -> str | None:
        """Post."""
        message = _message(subject, self._runbooks)
        try:
            answer = await self._client.send(text=message.text, blocks=message.blocks)
        except _FAULTS as error:
            raise NotifyError(f"Slack does not answer: {type(error).__name__}") from None
        if answer.status_code != 200:
            raise _refusal(_word(answer.body), answer.status_code, dict(answer.headers))
        return None

    async def close(self) -> None:
        """The client opens a session for each call and closes it itself."""


def _message(subject: Subject, runbook_base_url: str | None) -> Message:
    return render(subject, runbook_base_url) if isinstance(subject, Incident) else render_alert(subject)


def _refusal(code: str, status: int, headers: dict[str, Any]) -> NotifyError:
    retry_after = _seconds(headers)
    transient = status == 429 or status >= 500 or code in _TRANSIENT
    words = f"Slack refuses: {code}" + (f" (HTTP {status})" if status not in (0, 200) else "")
    return NotifyError(words, retry_after=retry_after if transient else None, permanent=not transient)


def _seconds(headers: dict[str, Any]) -> float | None:
    for name, value in headers.items():
        if name.lower() == "retry-after":
            text = value[0] if isinstance(value, list) and value else value
            try:
                return min(max(float(str(text)), 0.0), 3600.0)
            except ValueError:
                return None
    return None


def _code(response: Any) -> str:
    try:
        return str(response.get("error") or "unknown_error")
    except (ValueError, AttributeError, TypeError):
        return "no JSON in the answer"


def _word(body: object) -> str:
    """Slack's answer to a webhook is one word such as ``no_service``; anything else is not repeated."""
    text = str(body).strip()
    return text if len(text) <= 60 and text.isascii() and text.replace("_", "").isalnum() else "no reason given"
