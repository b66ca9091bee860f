"""A generic webhook: every change of an incident, and every alert that fires or ends, as one JSON document.

In: an incident or an alert. Out: ``POST`` with the payload that Alertmanager's webhook receiver sends (version 4), the
whole incident or alert beside it under ``agent``. 2xx is delivered, 429 and 5xx and silence are tried again, other 4xx
are refusals for good. The URL and the token come from the environment, since both open a door.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from agent.config import Secret
from agent.errors import NotifyError
from agent.launch import redact
from agent.model import AlertState, Incident
from agent.notify.alert_message import alert_topic
from agent.notify.message import render
from agent.notify.notifier import Phase, Subject
from agent.notify.payload import webhook_payload

TIMEOUT_SECONDS = 10.0
_FAULTS = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)


class Webhook:
    """One URL."""

    name = "webhook"
    min_interval_seconds = 0.0

    def __init__(self, url: Secret, token: Secret | None = None) -> None:
        self._url = url
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    def phase(self, subject: Subject) -> Phase | None:
        """Every change of an incident once; an alert when it fires and when it ends."""
        if isinstance(subject, Incident):
            return Phase(subject.id, f"{subject.id}:{subject.state.value}:{render(subject).fingerprint}")
        if subject.state is AlertState.PENDING:
            return None
        key = f"{alert_topic(subject)}:{subject.state.value}"
        return Phase(key, key)

    async def deliver(self, subject: Subject, ref: str | None) -> str | None:
        """Post; raises NotifyError."""
        body = msgspec.json.encode(webhook_payload(subject, _document(subject)))
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.reveal()}"
        try:
            async with self._open().post(
                self._url.reveal(), data=body, headers=headers, allow_redirects=False
            ) as response:
                await response.content.read(4096)
        except _FAULTS as error:
            raise NotifyError(f"the webhook does not answer: {type(error).__name__}") from None
        if not 200 <= response.status < 300:
            raise _refusal(response)
        return None

    async def close(self) -> None:
        """Let go of the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
        return self._session


def _document(subject: Subject) -> dict[str, object]:
    """The whole subject without the secrets that its texts may quote."""
    plain = msgspec.to_builtins(subject)
    cleaned = _clean(plain)
    assert isinstance(cleaned, dict)
    return cleaned


def _clean(value: object) -> object:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return value


def _refusal(response: aiohttp.ClientResponse) -> NotifyError:
    status = response.status
    transient = status == 429 or status == 408 or status >= 500
    retry_after = None
    if transient:
        try:
            retry_after = min(max(float(response.headers.get("Retry-After", "")), 0.0), 3600.0)
        except ValueError:
            retry_after = None
    return NotifyError(f"the webhook refuses: HTTP {status}", retry_after=retry_after, permanent=not transient)
