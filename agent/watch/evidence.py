"""Everything the watcher knows of one server now, in one place, and the view that remediation has of it.

In: what the collectors bring (child state, health, scrapes, log chunks, exit records). Out: the standing, the
context for a diagnosis, and :class:`agent.remediate.View`. It decides nothing and sends nothing but the one small
proof request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from agent.collect import CanaryResult, GpuSet, Health, ProcessReading, Scrape, VllmClient, Xid
from agent.model import Cause, Clock, Context, Exit, GpuReading, NotMeasured, State
from agent.series import is_multiprocess
from agent.watch.activity import GpuWork
from agent.watch.liveness import Child, Liveness, Standing
from agent.watch.scraped import ScrapeReader
from agent.watch.shape import shape_of
from agent.watch.startlog import StartLog
from agent.watch.tasks import within

# The stream is normally milliseconds behind; a burst of a dying server's tracebacks may take longer.
DRAIN_SECONDS = 2.0
# Without an exit record nothing says where the log ends: what is under way is given this long to arrive.
SETTLE_SECONDS = 0.3
# What a card did a while ago says nothing of now; a doubtful engine's cards are read every second.
WORK_SECONDS = 2.5
KEPT_XIDS = 16


class ServerEvidence:
    """The newest start of one server. ``on_state`` is called after every change of state."""

    def __init__(
        self,
        log: StartLog,
        clock: Clock,
        on_state: Callable[[Standing], None],
        request_seconds: Callable[[], float],
    ) -> None:
        self.log = log
        self.client: VllmClient | None = None
        self.status: Mapping[str, Any] = {}
        self.exit: Exit | None = None
        self.gpus: tuple[GpuReading, ...] | NotMeasured = NotMeasured(check="gpu memory", reason="not asked yet")
        self.processes: ProcessReading | NotMeasured = NotMeasured(check="processes", reason="not asked yet")
        self.scrape: Scrape | NotMeasured = NotMeasured(check="vllm metrics", reason="not asked yet")
        self.load: tuple[float, float] | None = None
        """Requests that run and that wait in all engines, as the last round has it; None where it brought nothing."""
        self.cards_told = False
        """Whether a driver has told of the server's cards since the watch began."""
        self.xids: tuple[Xid, ...] = ()
        """The newest Xids of the server's cards."""
        self._busy: tuple[bool, float] | None = None
        self._sums: Mapping[str, float] = {}
        self._reader = ScrapeReader()
        self._on_state = on_state
        self._request_seconds = request_seconds
        self._clock = clock
        self._liveness = Liveness(clock)
        self._starts = 0
        self._ended = False
        self._frozen = False
        self._changed = asyncio.Event()

    # -- what the collectors bring ------------------------------------------------------------------------

    def saw_start(self, child: Child = Child.STARTING) -> None:
        """A new start of the server: nothing of the last one counts from here on."""
        self._starts += 1
        self._ended = False
        self.scrape = NotMeasured(check="vllm metrics", reason="this start was not scraped yet")
        self._after(self._liveness.saw_child(child), always=True)

    def saw_exit(self, record: Exit) -> None:
        """The newest start has ended, and the launcher saw how."""
        self.exit = record
        self._ended = not record.asked
        self._after(self._liveness.saw_child(Child.STOPPED if record.asked else Child.DEAD), always=True)

    def saw_gone(self) -> None:
        """Attach mode: it no longer answers, and nobody saw how it ended."""
        self._ended = True
        self._wake()

    def saw_return(self) -> None:
        """Attach mode: it answers again, so a new start has begun unseen."""
        if self._ended or self._starts == 0:
            self._starts += 1
            self._ended = False
            self._wake()

    def saw_child(self, child: Child | None) -> None:
        """The launcher's word on the present child."""
        self._after(self._liveness.saw_child(child))

    def saw_milestones(self) -> None:
        """What the log says by now of a start or an end in progress."""
        loading = None if self.log.session.started else self.log.session.progress
        shut = self.log.session.shutdown_requested
        self._after(any([self._liveness.saw_loading(loading), self._liveness.saw_shutdown(shut)]))

    def saw_health(self, health: Health) -> None:
        """One answer of ``/health``."""
        self._after(self._liveness.saw_health(health))

    def saw_scrape(self, scrape: Scrape | NotMeasured) -> None:
        """One round of ``/metrics``; a repair that waits for a counter looks again."""
        scraped = self._reader.read(scrape)
        self.scrape, self._sums, self.load = scraped.scrape, scraped.sums, scraped.load
        self._liveness.saw_shape(shape_of(self._argv()))
        if isinstance(scrape, Scrape) and scraped.engines is not None:
            self._after(self._liveness.saw_engines(scraped.engines, scrape.at), always=True)
        else:
            self._wake()

    def saw_processes(self, reading: ProcessReading | NotMeasured, at: float) -> None:
        """The server's processes at monotonic ``at``."""
        self.processes = reading
        self._after(self._liveness.saw_activity(reading, self._gpu_work(), at))

    def saw_cards(self, cards: GpuSet, at: float) -> None:
        """One round of the driver, ended at monotonic ``at``."""
        if cards.readings is not None:
            self.gpus, self.cards_told = cards.readings, True
        elif self.cards_told or isinstance(self.gpus, NotMeasured):  # what nvidia-smi said may stand
            reason = "; ".join(one.reason for one in cards.not_measured) or "the driver does not tell"
            self.gpus = NotMeasured(check="gpu memory", reason=reason)
        if cards.busy is not None:
            self._busy = cards.busy, at
        self.xids = (*self.xids, *cards.xids)[-KEPT_XIDS:]

    def saw_paused(self, paused: bool | None) -> None:
        """What ``/is_paused`` said."""
        self._after(self._liveness.saw_paused(paused))

    def canary_sent(self, engine: str, at: float) -> None:
        """A canary is on its way to ``engine``."""
        self._liveness.canary_sent(engine, at)

    def saw_canary(self, result: CanaryResult) -> None:
        """A canary ended."""
        self._after(self._liveness.saw_canary(result))

    def saw_freeze(self, frozen: bool) -> None:
        """``agent freeze`` came into force or was lifted."""
        changed, self._frozen = frozen is not self._frozen, frozen
        self._after(False, always=changed)

    def saw_log(self) -> None:
        """An anchor completed: whoever waits should look again."""
        self._wake()

    def _after(self, state_changed: bool, *, always: bool = False) -> None:
        if state_changed:
            self._on_state(self._liveness.standing)
        if state_changed or always:
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- what the watcher asks ----------------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        """The judged state with its reason."""
        return self._liveness.standing

    @property
    def canaries(self) -> Mapping[str, CanaryResult]:
        """The last canary's result of each engine."""
        return self._liveness.canaries

    @property
    def health(self) -> Health | None:
        """The last answer of ``/health``."""
        return self._liveness.health

    @property
    def engines(self) -> Mapping[str, Standing]:
        """The judged state of each engine, by label."""
        return self._liveness.engines

    def wants_look(self, now: float) -> bool:
        """Whether the processes and a pause should be read at this round."""
        return self._liveness.wants_activity(now)

    def stands_still(self, now: float) -> bool:
        """Whether an engine has work and has not moved for two seconds."""
        return self._liveness.stands_still(now)

    def wants_canary(self, now: float, every: float) -> str | None:
        """The engine that a canary should be sent to now, at most one in ``every`` seconds."""
        return self._liveness.wants_canary(now, every)

    def _argv(self) -> tuple[str, ...]:
        argv = self.status.get("effective_argv") or self.status.get("argv") or ()
        return tuple(str(word) for word in argv)

    def _gpu_work(self) -> GpuWork:
        """A build for the CPU uses no GPU; what a driver said counts for a moment only."""
        if str(self.status.get("vllm_version") or "").endswith("+cpu"):
            return GpuWork.NONE
        if self._busy is None or self._clock.monotonic() - self._busy[1] > WORK_SECONDS:
            return GpuWork.UNKNOWN
        return GpuWork.BUSY if self._busy[0] else GpuWork.IDLE

    def context(self) -> Context:
        """What is known beside the log when a cause is named."""
        return self.context_of(self.exit if self._ended else None)

    def context_of(self, record: Exit | None) -> Context:
        """The same for the end that ``record`` tells of."""
        return Context(
            exit=record,
            argv=self._argv(),
            gpus=None if isinstance(self.gpus, NotMeasured) else self.gpus,
            vllm_version=self.status.get("vllm_version"),
            triton_version=self.status.get("triton_version"),
        )

    @property
    def version(self) -> str | None:
        """vLLM's version, as the launcher has it."""
        version = self.status.get("vllm_version")
        return str(version) if version else None

    @property
    def multiprocess(self) -> bool:
        """Whether several API servers answer from one registry, as far as the last scrape tells."""
        return bool(is_multiprocess(self._sums))

    def not_measured(self) -> tuple[NotMeasured, ...]:
        """What could not be seen, with the reasons."""
        readings = (self.scrape, self.gpus, self.processes, self._liveness.canary_not_measured)
        return tuple(one for one in readings if isinstance(one, NotMeasured))

    def refused(self) -> bool:
        """Whether nothing answers on the server's port, twice in a row."""
        return self._liveness.refused

    # -- agent.remediate.View -----------------------------------------------------------------------------

    def state(self) -> State:
        return self._liveness.standing.state

    def frozen(self) -> bool:
        return self._frozen

    def start_seq(self) -> int:
        return self._starts

    def ended(self) -> bool:
        return self._ended

    def exit_seq(self) -> int | None:
        return self.exit.seq if self.exit is not None else None

    def log_seen(self, fault: str) -> bool:
        return self.log.saw(fault)

    def metric(self, name: str) -> float | None:
        return None if isinstance(self.scrape, NotMeasured) else self._sums.get(name)

    async def request_answered(self) -> tuple[bool | None, str]:
        if self.client is None:
            return False, "the server's address is not known"
        answer = await self.client.ask(timeout=self._request_seconds())
        return answer.answered, answer.detail

    async def wait_change(self, timeout: float) -> None:
        await within(timeout, self._changed.wait())

    async def fresh_cause(self) -> Cause | None:
        """Read the present start's log to its end, then name the cause.

        A start that begins meanwhile changes nothing: part and record are taken before the first wait.
        """
        part, record = self.log.present, self.exit if self._ended else None
        if record is not None:
            await self.log.reach(record.log_offset, DRAIN_SECONDS)
        else:
            await self._clock.sleep(SETTLE_SECONDS)
        self.log.finish(part)
        causes = part.session.conclude(self.context_of(record))
        return causes[0] if causes else None
