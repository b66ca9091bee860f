"""A server in time, second by second: series, processes and canaries as a real one shows them, without a real clock.

In: what each engine does in the next seconds. Out: the standings that :class:`Liveness` judges. Numbers follow a real
vLLM 0.32 on CPU: gauges are set by a step alone, a resting process uses 0.02 CPU seconds a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from agent.collect import CanaryOutcome, CanaryResult, Health, HealthKind, ProcessReading, ProcessState
from agent.model import State
from agent.watch.activity import GpuWork
from agent.watch.liveness import Child, Liveness
from agent.watch.progress import EngineSample

CANARY_SECONDS = 10.0
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class HandClock:
    """Moves when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("liveness does not wait")


@dataclass
class FakeEngine:
    """One engine: ``decoding`` requests get ``pace`` tokens a second each."""

    name: str
    pid: int
    decoding: int = 0
    waiting: int = 0
    prefilling: int = 0
    kv: float = 0.0
    deferred: int = 0
    steps: bool = True
    state: str = "S"
    cpu_share: float | None = None
    awake: bool | None = True
    generation: float = 0.0
    iterations: float = 0.0
    rejections: float = 0.0
    answers: bool | None = None
    shown: EngineSample | None = None
    core_cpu: float = 10.0
    worker_cpu: float = 10.0

    @property
    def works(self) -> bool:
        return self.steps and self.state in "RS"

    def second(self, at: float) -> EngineSample:
        """One more second of its life; what /metrics shows at its end."""
        share = self.cpu_share
        if share is None:
            busy = self.decoding or self.prefilling
            share = 0.9 if busy and self.works else 0.02
        if self.state in "RS":
            self.worker_cpu += share
            self.core_cpu += share / 3
        if self.works or self.shown is None:
            self.generation += 20 * self.decoding
            self.iterations += 20 if self.decoding else 0
            self.shown = self._sample(at)
        self.shown = _at(self.shown, at, self.rejections, self.awake)
        return self.shown

    def _sample(self, at: float) -> EngineSample:
        return EngineSample(
            engine=self.name,
            at=at,
            running=self.decoding + self.prefilling,
            waiting=self.waiting + self.deferred,
            waiting_by_reason={"capacity": self.waiting, "deferred": self.deferred},
            kv_usage=self.kv,
            generation_tokens=self.generation,
            prompt_tokens=0.0,
            iterations=self.iterations,
            first_tokens=0.0,
            later_tokens=self.generation,
            finished=0.0,
            preemptions=0.0,
        )


def _at(sample: EngineSample, at: float, rejections: float, awake: bool | None) -> EngineSample:
    fields = {name: getattr(sample, name) for name in sample.__struct_fields__}
    return EngineSample(**{**fields, "at": at, "rejections": rejections, "awake": awake})


@dataclass
class World:
    """A launched server with its watcher's rounds; every look that liveness asks for is made."""

    engines: list[FakeEngine] = field(default_factory=lambda: [FakeEngine("0", 100)])
    gpu: GpuWork = GpuWork.NONE
    health: HealthKind = HealthKind.OK
    paused: bool = False
    sees_processes: bool = True
    launched: bool = True
    clock: HandClock = field(default_factory=HandClock)
    api_share: float = 0.01
    api_cpu: float = 1.0
    canaries: list[str] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    seen: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.liveness = Liveness(self.clock)
        self._under_way: tuple[str, float] | None = None
        self._probed = 0.0
        if self.launched:
            self.liveness.saw_child(Child.READY)

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    @property
    def state(self) -> State:
        return self.liveness.standing.state

    @property
    def reason(self) -> str:
        return self.liveness.standing.reason

    def run(self, seconds: int, until: Callable[[], bool] = lambda: False) -> int:
        """That many rounds, or up to ``until``; how many there were."""
        for count in range(seconds):
            if until():
                return count
            self.round()
        return seconds

    def round(self) -> None:
        self.clock.seconds += 1.0
        self.api_cpu += self.api_share
        now = self.clock.seconds
        live = self.liveness
        live.saw_health(Health(kind=self.health, detail=f"/health {self.health.value}", at=now))
        live.saw_engines([engine.second(now) for engine in self.engines], now)
        if self.sees_processes and (live.wants_activity(now) or now - self._probed >= 10):
            self._probed = now
            live.saw_activity(self.reading(), self.gpu, now)
            live.saw_paused(self.paused)
        elif not self.sees_processes:
            live.saw_paused(self.paused)
        self._canary(now)
        self.seen.append(self.state)

    def reading(self) -> ProcessReading:
        members = [ProcessState(pid=1, ppid=0, title="/venv/bin/vllm serve m", state="S", cpu_seconds=self.api_cpu)]
        for one in self.engines:
            suffix = f"_DP{one.name}" if len(self.engines) > 1 else ""
            core = ProcessState(
                pid=one.pid, ppid=1, title=f"VLLM::EngineCore{suffix}", state="S", cpu_seconds=one.core_cpu
            )
            worker = ProcessState(
                pid=one.pid + 1, ppid=one.pid, title="VLLM::Worker", state=one.state, cpu_seconds=one.worker_cpu
            )
            members += [core, worker]
        return ProcessReading(processes=len(members), resident_bytes=0, members=tuple(members))

    def _canary(self, now: float) -> None:
        """Answered at once by an engine that steps and is free, otherwise after its timeout."""
        wanted = self.liveness.wants_canary(now)
        if wanted is not None:
            assert self._under_way is None, "a canary is outstanding"
            self.liveness.canary_sent(wanted, now)
            self._under_way = (wanted, now)
            self.canaries.append(wanted)
            self.sent.append(now)
        if self._under_way is None:
            return
        name, sent = self._under_way
        engine = next(one for one in self.engines if one.name == name)
        free = engine.works and not engine.prefilling if engine.answers is None else engine.answers
        if free:
            self.ended(name, sent, CanaryOutcome.ANSWERED)
        elif now - sent >= CANARY_SECONDS:
            self.ended(name, sent, CanaryOutcome.TIMEOUT)

    def ended(self, name: str, sent: float, outcome: CanaryOutcome) -> None:
        self._under_way = None
        self.liveness.saw_canary(
            CanaryResult(
                engine=name,
                outcome=outcome,
                detail=outcome.value,
                sent_at=sent,
                ended_at=self.clock.seconds,
                paused=False,
            )
        )
