"""The launcher as a source of evidence: its events, its log stream, its probes, as typed readings.

In: a run-dir's control socket. Out: :class:`LauncherEvent` and log chunks that survive a launcher restart (both
streams reconnect and go on after the last sequence or offset), GPU and process readings. Never raises on a
launcher that is away: ``trouble`` says so, and ``lost`` counts how often the event stream broke.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import msgspec

from agent.errors import LauncherError
from agent.launch import LauncherClient, LogChunk
from agent.model import Clock, Exit, GpuReading, NotMeasured

RECONNECT_SECONDS = (0.1, 0.2, 0.5, 1.0)


class LauncherEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the launcher's stream; ``data`` holds the whole record as sent."""

    seq: int
    kind: str
    at: str
    data: Mapping[str, object]


class LauncherSource:
    """Both streams of one launcher, reconnecting."""

    def __init__(self, client: LauncherClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.lost = 0
        self.trouble: NotMeasured | None = None

    async def events(self, after: int) -> AsyncGenerator[LauncherEvent, None]:
        """Every event after ``after``, for ever; the caller closes it."""
        failures = 0
        while True:
            try:
                async with aclosing(self._client.events(after)) as records:
                    async for record in records:
                        failures = 0
                        event = _event(record)
                        if event is not None:
                            after = event.seq  # not the highest ever: a run-dir made anew counts from 1 again
                            yield event
                reason = "the launcher closed the stream"
            except LauncherError as error:
                reason = error.message
            self.lost += 1
            self.away(reason)
            await self._pause(failures)
            failures += 1

    async def log(self, after: Callable[[], int]) -> AsyncGenerator[LogChunk, None]:
        """Every chunk of the server's output after ``after()`` (asked again at each connection)."""
        failures = 0
        while True:
            try:
                async with aclosing(self._client.log(after())) as chunks:
                    async for chunk in chunks:
                        failures = 0
                        yield chunk
                reason = "the launcher closed the stream"
            except LauncherError as error:
                reason = error.message
            self.away(reason)
            await self._pause(failures)
            failures += 1

    def away(self, reason: str) -> None:
        """It did not answer."""
        self.trouble = NotMeasured(check="launcher", reason=reason)

    def answered(self) -> None:
        """It answered a call."""
        self.trouble = None

    async def _pause(self, failures: int) -> None:
        await self._clock.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])

    async def gpus(self) -> tuple[GpuReading, ...] | NotMeasured:
        """The cards as the launcher's ``probe gpu`` sees them."""
        try:
            result = await self._client.call("probe", name="gpu")
        except LauncherError as error:
            return NotMeasured(check="gpu memory", reason=error.message)
        return gpu_readings(result)


def gpu_readings(result: Mapping[str, object]) -> tuple[GpuReading, ...] | NotMeasured:
    """Read the answer of ``probe gpu``; an answer of another shape is a reason, not an error."""
    if not result.get("available"):
        return NotMeasured(check="gpu memory", reason=str(result.get("reason") or "no GPU was found"))
    try:
        return msgspec.convert(result.get("gpus"), tuple[GpuReading, ...])
    except msgspec.ValidationError as error:
        return NotMeasured(check="gpu memory", reason=f"the launcher's answer could not be read: {error}")


def exit_record(data: Mapping[str, object]) -> Exit | None:
    """The exit record inside an event or a status; None where there is none or it cannot be read."""
    record = data.get("exit") or data.get("record") or data
    try:
        return msgspec.convert(record, Exit)
    except msgspec.ValidationError:
        return None


def _event(record: Mapping[str, object]) -> LauncherEvent | None:
    try:
        return LauncherEvent(
            seq=int(str(record["seq"])), kind=str(record["kind"]), at=str(record.get("at", "")), data=record
        )
    except (KeyError, TypeError, ValueError):
        return None
