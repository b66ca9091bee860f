"""What one engine shows of its work in a scrape, and whether anything of it has moved since.

In: the samples of ``/metrics``, one scrape after another. Out: for each engine label a :class:`Progress` that knows
since when nothing has moved, the longest gap between two movements of the last minutes, and how many requests were
decoding when it froze. It judges nothing: a flat series is no fault by itself.

Why these series (seen on vLLM 0.32): the gauges are set after each step of the engine and by nothing else, also after
a step of a chunked prefill, so any change of any of them proves a step; between steps everything is flat, however long
a step takes. A client that goes away is counted nowhere. ``admission_rejections_total`` is counted by the API server
before the engine sees the request: pressure, never progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from agent.series import Labels, name_of

LEARN_SECONDS = 600.0
ONLY_ENGINE = "0"

# Field -> family names, newest first; a version exports one of them (vllm/v1/metrics/loggers.py, 0.8 to 0.33).
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "iterations": ("vllm:iteration_tokens_total_count",),
    "first_tokens": ("vllm:time_to_first_token_seconds_count",),
    "later_tokens": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "finished": ("vllm:request_success_total",),
    "preemptions": ("vllm:num_preemptions_total",),
}
BY_REASON = "vllm:num_requests_waiting_by_reason"
REJECTIONS = "vllm:admission_rejections_total"
SLEEP = "vllm:engine_sleep_state"
COUNTERS = ("generation_tokens", "prompt_tokens", "iterations", "first_tokens", "later_tokens", "finished",
            "preemptions")  # fmt: skip
GAUGES = ("running", "waiting", "kv_usage")
MAX_ENGINES = 256
"""More than any server has; one that makes up labels must not cost the watcher more."""
WANTED = frozenset({name for names in FAMILIES.values() for name in names} | {BY_REASON, REJECTIONS, SLEEP})
"""The families that :func:`engine_samples` reads."""


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """One engine in one scrape; None is "this version does not export it". ``at``: monotonic seconds."""

    engine: str
    at: float
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = {}
    kv_usage: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    iterations: float | None = None
    first_tokens: float | None = None
    later_tokens: float | None = None
    finished: float | None = None
    preemptions: float | None = None
    rejections: float | None = None
    awake: bool | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is in the engine, as far as its last step knew."""
        return bool((self.running or 0) > 0 or (self.waiting or 0) > 0)

    @property
    def held_back(self) -> float:
        """Requests that wait for capacity (those deferred for a transfer or an adapter are not counted)."""
        if self.waiting_by_reason:
            return self.waiting_by_reason.get("capacity", 0.0)
        return self.waiting or 0.0


def engine_samples(samples: Iterable[tuple[Labels, float, int | None]], at: float) -> tuple[EngineSample, ...]:
    """Each engine of one scrape, by label ``engine`` ("0" where a version has none); several models are summed.

    ``samples`` as :func:`agent.series.parse` gives them; NaN and unknown families are passed over.
    """
    found: dict[str, dict[str, float]] = {}
    reasons: dict[str, dict[str, float]] = {}
    rejected: float | None = None
    for pairs, value, _ in samples:
        name = name_of(pairs)
        if name not in WANTED or value != value:
            continue
        labels = dict(pairs)
        engine = labels.get("engine", ONLY_ENGINE)
        if name == REJECTIONS:
            rejected = (rejected or 0.0) + value
        elif name == BY_REASON:
            _add(reasons.setdefault(engine, {}), labels.get("reason", ""), value)
        elif name != SLEEP:
            _add(found.setdefault(engine, {}), name, value)
        elif labels.get("sleep_state") == "awake":
            found.setdefault(engine, {})[SLEEP] = value
    engines = sorted(found)[:MAX_ENGINES]
    return tuple(_sample(engine, at, found[engine], reasons.get(engine, {}), rejected) for engine in engines)


def _add(into: dict[str, float], name: str, value: float) -> None:
    into[name] = into.get(name, 0.0) + value


def _sample(
    engine: str, at: float, values: Mapping[str, float], reasons: Mapping[str, float], rejected: float | None
) -> EngineSample:
    fields = {
        field: next((values[name] for name in names if name in values), None) for field, names in FAMILIES.items()
    }
    awake = None if SLEEP not in values else values[SLEEP] != 0
    return EngineSample(
        engine=engine, at=at, waiting_by_reason=dict(reasons), rejections=rejected, awake=awake, **fields
    )


def moved(before: EngineSample, after: EngineSample) -> bool:
    """Whether the engine made a step between two scrapes, as any of its series tells."""
    return any(getattr(before, name) != getattr(after, name) for name in (*COUNTERS, *GAUGES)) or (
        dict(before.waiting_by_reason) != dict(after.waiting_by_reason)
    )


class Progress:
    """The movements of one engine. All times are monotonic seconds."""

    def __init__(self) -> None:
        self.last: EngineSample | None = None
        self.moved_at: float | None = None
        self.work_since: float | None = None
        self.decoders = 0.0
        """Requests that were decoding at the last movement and had not ended: a lower bound."""
        self.steady = 0
        """Scrapes in a row, up to the last movement, in which decoding requests got tokens."""
        self._gaps: deque[tuple[float, float]] = deque()

    def saw(self, sample: EngineSample, *, learn: bool = True) -> bool:
        """One scrape; True if something moved. ``learn`` False: a gap that ends here was no step (pause, stop)."""
        before, self.last = self.last, sample
        if before is None:
            self.moved_at = sample.at
            self.work_since = sample.at if sample.busy else None
            return True
        if not moved(before, sample):
            return False
        if learn and before.busy:
            self._learn(sample.at, sample.at - self.quiet_since(before.at))
        self._count_decoders(before, sample)
        self.moved_at = sample.at
        self.work_since = None if not sample.busy else self.work_since or sample.at
        return True

    def touched(self, at: float) -> None:
        """Another sign of life: a canary was answered, a heartbeat moved."""
        self.moved_at = max(at, self.moved_at or at)

    def quiet_since(self, otherwise: float) -> float:
        """Since when nothing has moved while work was there."""
        return max((one for one in (self.moved_at, self.work_since) if one is not None), default=otherwise)

    def longest_gap(self, now: float) -> float:
        """The longest time between two movements under work in the last ten minutes."""
        while self._gaps and self._gaps[0][0] < now - LEARN_SECONDS:
            self._gaps.popleft()
        return self._gaps[0][1] if self._gaps else 0.0

    def _learn(self, at: float, gap: float) -> None:
        """Shorter gaps before a longer one can never be the longest again, so the first that is kept is the longest."""
        while self._gaps and self._gaps[-1][1] <= gap:
            self._gaps.pop()
        self._gaps.append((at, gap))

    def _count_decoders(self, before: EngineSample, after: EngineSample) -> None:
        """Each later token of a request is counted once, so tokens a step is how many were decoding; those that
        ended in the same scrape may have been any of them.
        """
        later, steps = _rise(before.later_tokens, after.later_tokens), _rise(before.iterations, after.iterations)
        if later is None or not steps:
            if later == 0:
                self.steady, self.decoders = 0, 0.0
            return
        ended = _rise(before.finished, after.finished) or 0.0
        self.steady = self.steady + 1 if later > 0 else 0
        self.decoders = max(0.0, min(later / steps - ended, after.running or 0.0))


def _rise(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before
