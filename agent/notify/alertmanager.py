"""Alertmanager: the present state of all alerts, pushed when it changes and again and again while it lasts.

In: alerts and incidents as they change. Out: ``POST /api/v2/alerts`` to every configured Alertmanager (all of a
cluster, as its documentation asks: they agree among themselves). What goes on is sent with an end four resends ahead,
so that an agent that dies lets its alerts end by themselves; what has ended is sent with its end for 15 minutes, as
Prometheus does it (rules/alerting.go, ``resolvedRetention``). A receiver that is down owes nothing: it gets the whole
present state when it is back. One alert that it refuses does not hold back the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp
import msgspec

from agent.config import Secret
from agent.model import Alert, AlertState, Clock, Incident, parse_rfc3339, rfc3339
from agent.notify.notifier import NotifierStatus, Subject
from agent.notify.payload import Posted, ended_at, postable

RESEND_SECONDS = 60.0
RESOLVED_SECONDS = 900.0
LEASE_RESENDS = 4
TIMEOUT_SECONDS = 10.0
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
BATCH = 64
# Statuses that say "not you" or "not now" of the whole request, not "not this alert".
_NOT_NOW = frozenset({401, 403, 404, 405, 429})
_FAULTS = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)


@dataclass
class _Held:
    """One alert and when each receiver was last told its present state (monotonic seconds)."""

    subject: Subject
    forget_at: float | None = None
    told: dict[str, float] = field(default_factory=dict)


class Alertmanager:
    """All Alertmanagers of one configuration; a pusher."""

    name = "alertmanager"

    def __init__(
        self,
        urls: Sequence[str],
        clock: Clock,
        *,
        token: Secret | None = None,
        resend_seconds: float = RESEND_SECONDS,
        observe: Callable[[str, str], None] | None = None,
    ) -> None:
        self._receivers = [_Receiver(url, token) for url in urls]
        self._clock = clock
        self._resend = resend_seconds
        self._observe = observe or (lambda notifier, outcome: None)
        self._held: dict[str, _Held] = {}
        self._news = asyncio.Event()

    def saw(self, subject: Subject) -> None:
        """Remember the newest state; a pending alert is nobody's business yet."""
        if isinstance(subject, Alert) and subject.state is AlertState.PENDING:
            return
        # One alert of a label set, as Alertmanager keeps it: an older end, sent again, would end what fires anew.
        key = subject.id if isinstance(subject, Incident) else subject.fingerprint
        ended = ended_at(subject) is not None
        forget_at = self._clock.monotonic() + RESOLVED_SECONDS if ended else None
        self._held.pop(key, None)
        self._held[key] = _Held(subject, forget_at)
        self._news.set()

    def status(self) -> NotifierStatus:
        """``pending`` counts what some receiver has not been told."""
        untold = sum(1 for held in self._held.values() if len(held.told) < len(self._receivers))
        error = next((one.error for one in self._receivers if one.error is not None), None)
        refused = sum(len(one.refused) for one in self._receivers)
        return NotifierStatus(name=self.name, pending=untold, parked=refused, error=error)

    async def run(self) -> None:
        """Push until cancelled."""
        try:
            await asyncio.gather(*(self._serve(one) for one in self._receivers))
        finally:
            for receiver in self._receivers:
                await receiver.close()

    async def _serve(self, receiver: _Receiver) -> None:
        while True:
            news = self._news
            due = self._due(receiver)
            if not due:
                await self._pause(news, self._resend / 4)
                continue
            if not await self._push(receiver, due):
                await self._clock.sleep(BACKOFF_SECONDS[min(receiver.failures, len(BACKOFF_SECONDS)) - 1])

    async def _pause(self, news: asyncio.Event, seconds: float) -> None:
        """Until something changes, or for a while."""
        wake = asyncio.ensure_future(news.wait())
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((wake, sleep), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
            sleep.cancel()
        if news.is_set() and news is self._news:
            self._news = asyncio.Event()  # every receiver holds the old one, which stays set

    def _due(self, receiver: _Receiver) -> list[_Held]:
        now = self._clock.monotonic()
        for key in [key for key, held in self._held.items() if held.forget_at is not None and held.forget_at <= now]:
            del self._held[key]
        return [
            held
            for held in self._held.values()
            if receiver.url not in held.told or now - held.told[receiver.url] >= self._resend
        ][:BATCH]

    async def _push(self, receiver: _Receiver, due: list[_Held]) -> bool:
        lease = rfc3339(self._clock.now() + timedelta(seconds=LEASE_RESENDS * self._resend))
        alerts = [self._posted(held, lease) for held in due]
        told = await receiver.push(alerts)
        self._observe(self.name, "sent" if told else "failed")
        if not told:
            return False
        for held in due:
            held.told[receiver.url] = self._clock.monotonic()
        return True

    def _posted(self, held: _Held, lease: str) -> Posted:
        """A start that lies ahead, for a clock that was set back, would be refused."""
        posted = postable(held.subject, self._end(held, lease))
        end, now = parse_rfc3339(str(posted["endsAt"])), self._clock.now()
        if parse_rfc3339(str(posted["startsAt"])) > min(end, now):
            posted["startsAt"] = rfc3339(min(end, now))
        return posted

    def _end(self, held: _Held, lease: str) -> str:
        """An end that lies in the future would read as firing, for a clock that was set back."""
        end = ended_at(held.subject)
        if end is None:
            return lease
        return end if parse_rfc3339(end) <= self._clock.now() else rfc3339(self._clock.now())


class _Receiver:
    """One Alertmanager."""

    def __init__(self, url: str, token: Secret | None) -> None:
        self.url = url.rstrip("/")
        self.failures = 0
        self.refused: set[str] = set()
        self.error: str | None = None
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def push(self, alerts: list[Posted]) -> bool:
        """Tell it; False when it could not be told. What it refuses is counted, and holds back nothing else."""
        status, words = await self._post(alerts)
        if status is None or status >= 500 or status in _NOT_NOW:
            self.failures += 1
            self.error = words
            return False
        self.failures, self.error = 0, None
        if 200 <= status < 300:
            return True
        if len(alerts) > 1:
            return await self._one_by_one(alerts)
        self.refused.add(str(alerts[0]["labels"]))
        self.error = f"an alert was refused: {words}"
        return True

    async def _one_by_one(self, alerts: list[Posted]) -> bool:
        refusal, told = None, True
        for alert in alerts:
            told = await self.push([alert]) and told
            refusal = self.error or refusal
        self.error = refusal
        return told

    async def _post(self, alerts: list[Posted]) -> tuple[int | None, str]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.reveal()}"
        target = f"{self.url}/api/v2/alerts"
        try:
            async with self._open().post(
                target, data=msgspec.json.encode(alerts), headers=headers, allow_redirects=False
            ) as response:
                body = (await response.content.read(2048)).decode("utf-8", "replace")
        except _FAULTS as error:
            return None, f"{self.url} does not answer: {type(error).__name__}"
        return response.status, f"{target} answered {response.status}: {' '.join(body.split())[:200]}"

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
        return self._session
