"""From published incidents and alerts to delivered messages, at the receiver's own speed.

In: :meth:`Dispatcher.publish`, a short synchronous call that only writes to the journal's outbox (and hands the state
to those receivers that are pushed the whole state again and again). Out:
deliveries, one task per notifier, so that a dead receiver delays nobody else. A failure is retried with a
growing wait (or the receiver's Retry-After); a refusal for good is reported once and parked until the
next start of the agent, when it is tried once more. A message is marked sent after the receiver's answer:
only a crash in between can repeat it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from agent.errors import NotifyError
from agent.journal import Delivery, Journal
from agent.model import Alert, Clock, Incident, parse_rfc3339
from agent.notify.alert_message import ALERT_TOPIC
from agent.notify.notifier import Notifier, NotifierStatus, Pusher, Subject

BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_IDLE_SECONDS = 30.0
_MAX_WAIT_SECONDS = 3700.0  # a longer wait means that the wall clock was set back

Observe = Callable[[str, str], None]
_log = logging.getLogger(__name__)
_INCIDENT = msgspec.json.Decoder(Incident)
_ALERT = msgspec.json.Decoder(Alert)


class Dispatcher:
    """All notifiers of the watcher; ``observe(notifier, outcome)`` counts sent, failed, parked."""

    def __init__(
        self,
        journal: Journal,
        notifiers: Sequence[Notifier],
        clock: Clock,
        *,
        pushers: Sequence[Pusher] = (),
        observe: Observe | None = None,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._observe = observe or (lambda notifier, outcome: None)
        self._lanes = [_Lane(notifier, journal, clock, self._observe) for notifier in notifiers]
        self._pushers = tuple(pushers)

    def publish(self, subject: Subject) -> None:
        """Queue what each notifier should say about this now; the same content is queued once."""
        self.remind(subject)
        payload = msgspec.json.encode(subject)
        for lane in self._lanes:
            phase = lane.notifier.phase(subject)
            if phase is None:
                continue
            topic, key, delay = phase
            if self._journal.outbox.enqueue(lane.notifier.name, key, topic, payload, delay_seconds=delay):
                lane.wake.set()

    def remind(self, subject: Subject) -> None:
        """Tell it to those alone who are pushed the whole state: no message is sent for it."""
        for pusher in self._pushers:
            pusher.saw(subject)

    async def run(self) -> None:
        """Deliver until cancelled."""
        for lane in self._lanes:
            self._journal.outbox.unpark(lane.notifier.name)
        try:
            if not self._lanes and not self._pushers:
                await asyncio.Event().wait()
            lanes, pushers = (one.run() for one in self._lanes), (one.run() for one in self._pushers)
            await asyncio.gather(*lanes, *pushers)
        finally:
            for lane in self._lanes:
                await lane.notifier.close()

    async def flush(self, timeout: float) -> bool:
        """At the agent's end: wait at most ``timeout`` seconds for all to be sent; the rest stays queued."""
        deadline = self._clock.monotonic() + timeout
        while any(status.pending for status in self.status()):  # pushers count what was not pushed yet
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(0.1)
        return True

    def status(self) -> tuple[NotifierStatus, ...]:
        """How each notifier stands."""
        return (*(one.status() for one in self._lanes), *(one.status() for one in self._pushers))


class _Lane:
    """One notifier's queue and its pace."""

    def __init__(self, notifier: Notifier, journal: Journal, clock: Clock, observe: Observe) -> None:
        self.notifier = notifier
        self.wake = asyncio.Event()
        self._outbox = journal.outbox
        self._clock = clock
        self._observe = observe
        self._failures = 0
        self._error: str | None = None
        self._reported: str | None = None

    def status(self) -> NotifierStatus:
        name = self.notifier.name
        return NotifierStatus(
            name=name,
            pending=self._outbox.count(name),
            parked=self._outbox.count(name, "parked"),
            error=self._error,
        )

    async def run(self) -> None:
        while True:
            self.wake.clear()
            waiting = self._outbox.pending(self.notifier.name, limit=1)
            if not waiting:
                await self._pause(_IDLE_SECONDS)
                continue
            wait = (parse_rfc3339(waiting[0].next_at) - self._clock.now()).total_seconds()
            # The head of the lane waits, and all behind it: order, and one backoff for a dead receiver.
            if 0 < wait <= _MAX_WAIT_SECONDS:
                await self._clock.sleep(min(wait, _IDLE_SECONDS))
                continue
            await self._deliver(waiting[0])

    async def _pause(self, seconds: float) -> None:
        """Until something is published, or for a while."""
        wake = asyncio.ensure_future(self.wake.wait())
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((wake, sleep), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
            sleep.cancel()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            ref = await self.notifier.deliver(_subject(delivery), delivery.ref)
        except NotifyError as error:
            self._failed(delivery, error)
        except Exception as error:  # a defect in a notifier must not end the lane
            _log.exception("notifier %s failed", self.notifier.name)
            self._failed(delivery, NotifyError(f"{type(error).__name__} in the notifier"))
        else:
            self._failures, self._error, self._reported = 0, None, None
            self._outbox.mark_sent(delivery, ref)
            self._observe(self.notifier.name, "sent")
            await self._clock.sleep(self.notifier.min_interval_seconds)

    def _failed(self, delivery: Delivery, error: NotifyError) -> None:
        self._error = error.message
        if error.permanent:
            self._outbox.park(delivery, error.message)
            self._observe(self.notifier.name, "parked")
        else:
            wait = error.retry_after
            if wait is None:
                wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
            self._failures += 1
            self._outbox.mark_failed(delivery, error.message, self._clock.now() + timedelta(seconds=wait))
            self._observe(self.notifier.name, "failed")
        if self._reported != error.message:
            self._reported = error.message
            _log.warning("notifier %s: %s; the message is kept", self.notifier.name, error.message)


def _subject(delivery: Delivery) -> Subject:
    """What was queued; an alert's topic says so (messages of older agents are incidents)."""
    decoder = _ALERT if delivery.topic.startswith(ALERT_TOPIC) else _INCIDENT
    return decoder.decode(delivery.payload)
