"""What is replayed: answers of ``/metrics`` through time, of real servers and of servers with faults.

In: a folder of real captures, the step between two scrapes, and where in the script the scene begins. Out: for each
target the moments with the samples that it exposed then, None where it did not answer. No randomness and no clock:
the same scene is the same samples. Times of the script are seconds; the script of faults lasts 4,500 s, before it
(negative seconds) all is well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.series import Labels, labels_of
from tests.differential.own import own_frame

BASE_MS = 20_254 * 86_400_000
"""A whole day since the epoch, so that every interval of a group divides it."""
FIRST_MS = 60_000
"""The first moment after the base; all intervals of the shipped groups divide it too."""
CAPTURES = Path(__file__).parents[1] / "data/captures/metrics"
ORDER = (
    "cpu032_01_idle_before_first_request",
    "cpu032_02_idle_after_4_requests",
    "cpu032_04_after_client_aborts",
    "cpu032_05_after_4xx",
    "cpu032_07_kv_pressure_t1",
    "cpu032_07_kv_pressure_t2",
    "cpu032_07_kv_pressure_t4",
    "cpu032_09_multiproc_prom_mode_with_plugin",
    "h200_025_base_idle",
    "h200_025_base_after",
    "cpu032_10_api_server_count_2",
    "h200x2_025_tp2_idle",
)
Frame = Mapping[Labels, float]


@dataclass(frozen=True)
class Scene:
    """``start_s``: the second of the script at the first moment; ``step_s`` between two; ``length_s`` in all.

    ``unsteady``: answers come up to three tenths of a step before the evaluation, as scrapes of a loaded host do.
    """

    name: str
    step_s: int
    length_s: int
    start_s: int = 0
    unsteady: bool = False

    @property
    def slot_ms(self) -> int:
        """All samples lie on multiples of this."""
        return self.step_s * (100 if self.unsteady else 1000)

    @property
    def end_ms(self) -> int:
        """The last evaluation."""
        return BASE_MS + FIRST_MS + self.length_s * 1000

    def scraped_ms(self, at_ms: int) -> int:
        """When the answer came that is judged at ``at_ms``."""
        early = at_ms // (self.step_s * 1000) * 7 % 4 if self.unsteady else 0
        return at_ms - early * self.slot_ms

    def moments(self) -> Iterator[tuple[int, int]]:
        """Milliseconds since the epoch, and the second of the script."""
        for passed in range(0, self.length_s + 1, self.step_s):
            yield BASE_MS + FIRST_MS + passed * 1000, self.start_s + passed

    def targets(self) -> list[Target]:
        """The three servers and the agent itself."""
        new, old = Faulty(self.step_s), Faulty(self.step_s, old=True)
        replay, moments = Replay(), list(self.moments())
        made: list[tuple[str, Callable[[int], Frame | None]]] = [
            ("new:8000", new.frame),
            ("old:8000", lambda second: old.frame(second - 120)),
            ("replay:8000", replay.frame),
        ]
        servers = [
            Target({"job": "vllm", "instance": name}, [self._answer(at_ms, frame(second)) for at_ms, second in moments])
            for name, frame in made
        ]
        own = [self._answer(at_ms, own_frame(second, at_ms / 1000 - second)) for at_ms, second in moments]
        return [*servers, Target({"job": "vllm-agent", "instance": "host"}, own, agent=True)]

    def _answer(self, at_ms: int, frame: Frame | None) -> Answer:
        return Answer(at_ms, self.scraped_ms(at_ms), frame)


@dataclass(frozen=True)
class Answer:
    """What a target exposed at ``scraped_ms`` (None: it did not answer), judged at ``at_ms``."""

    at_ms: int
    scraped_ms: int
    frame: Frame | None


@dataclass(frozen=True)
class Target:
    """``labels`` that a scrape adds, and what was exposed when."""

    labels: Mapping[str, str]
    answers: list[Answer] = field(repr=False)
    agent: bool = False


def within(second: float, since: float, until: float) -> bool:
    return since <= second < until


def read_capture(name: str) -> dict[Labels, float]:
    """A capture's samples as prometheus_client reads them."""
    text = (CAPTURES / f"{name}.prom").read_text()
    return {
        labels_of({**sample.labels, "__name__": sample.name}): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Replay:
    """Real answers in their order, with straight lines between two; restarts and oddities where the script says so."""

    SECONDS = 4_500 / len(ORDER)

    def __init__(self) -> None:
        self._captures = [read_capture(name) for name in ORDER]

    def frame(self, second: int) -> Frame | None:
        """None while the server is down: between versions, while it flaps, and for one lost scrape."""
        place = max(0.0, min(second / self.SECONDS, len(ORDER) - 1e-9))
        index, share = int(place), place - int(place)
        if (index in (7, 8, 10, 11) and share < 0.1) or self._unanswered(second):
            return None
        now, then = self._captures[index], self._captures[min(index + 1, len(ORDER) - 1)]
        frame = {labels: value + (then.get(labels, value) - value) * share for labels, value in now.items()}
        return self._odd(frame, second)

    @staticmethod
    def _unanswered(second: int) -> bool:
        return within(second, 2_040, 2_046) or (within(second, 3_000, 3_240) and second // 60 % 2 == 1)

    @staticmethod
    def _odd(frame: dict[Labels, float], second: int) -> Frame:
        """Values that are no number, huge ones, a family that vanishes, and one whose gauge goes alone."""
        if within(second, 840, 930):
            frame = {
                labels: value for labels, value in frame.items() if dict(labels)["__name__"] != "http_requests_total"
            }
        for labels in list(frame):
            name = dict(labels)["__name__"]
            if name == "vllm:kv_cache_usage_perc" and within(second, 600, 660):
                frame[labels] = math.nan
            elif name == "vllm:num_requests_waiting" and within(second, 700, 730):
                frame[labels] = math.inf
            elif name == "vllm:num_requests_running" and within(second, 1_200, 1_215):
                del frame[labels]
            elif name == "vllm:generation_tokens_total" and within(second, 1_320, 1_380):
                frame[labels] = 1e300
        return frame


RENAMED = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
LACKING = ("vllm:request_time_per_output_token_seconds", "vllm:admission_rejections_total")
BOUNDS = {
    "vllm:time_to_first_token_seconds": (0.001, 0.02, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560),
    "vllm:e2e_request_latency_seconds": (0.3, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960, 1920, 7680),
    "vllm:inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10, 20, 40, 80),
    "vllm:request_time_per_output_token_seconds": (0.001, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10, 80),
}
HEALTHY = {"time_to_first_token": 0.08, "e2e_request_latency": 1.7, "inter_token_latency": 0.008}
SLOW = {"time_to_first_token": 60.0, "e2e_request_latency": 1300.0, "inter_token_latency": 3.0}


class Faulty:
    """A server under load with one fault after the other; it starts anew after it was away. Two engines for a while.

    ``old``: with the names of vLLM 0.8. The real capture around it makes the answers as large as real ones.
    """

    def __init__(self, step_s: int, *, old: bool = False) -> None:
        self._step = step_s
        self._old = old
        self._around = {} if old else self._others(read_capture("cpu032_07_kv_pressure_t2"))
        self._totals: dict[Labels, float] = {}

    @staticmethod
    def _others(capture: Mapping[Labels, float]) -> dict[Labels, float]:
        moved = ("http_requests", "vllm:num_", "vllm:kv_", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
        stays = (*moved, "vllm:request_success", "vllm:admission", *BOUNDS)
        return {labels: value for labels, value in capture.items() if not dict(labels)["__name__"].startswith(stays)}

    def frame(self, second: int) -> Frame | None:
        """None while the server is away: 660 s, and one scrape in the middle of the run."""
        if within(second, 3_600, 4_270):
            self._totals.clear()
            return None
        engines = ("0", "1") if within(second, 600, 3_000) else ("0",)
        frame: dict[Labels, float] = dict(self._around)
        for engine in engines:
            self._engine(frame, second, engine)
        self._answers(frame, second)
        if within(second, 2_750, 2_750 + self._step):
            return None
        return {self._renamed(labels): value for labels, value in frame.items() if not self._lacks(labels)}

    def _lacks(self, labels: Labels) -> bool:
        return self._old and dict(labels)["__name__"].startswith(LACKING)

    def _renamed(self, labels: Labels) -> Labels:
        if not self._old:
            return labels
        pairs = dict(labels)
        for now, before in RENAMED.items():
            pairs["__name__"] = pairs["__name__"].replace(now, before)
        return labels_of(pairs)

    def _engine(self, frame: dict[Labels, float], second: int, engine: str) -> None:
        hung, full = within(second, 2_800, 3_600), within(second, 1_900, 2_700)
        own = {"engine": engine, "model_name": "tiny"}
        waiting = min(1_500.0, (second - 1_900) * 15) + (second - 1_900) * 4 if full else float(second % 7 == 0)
        gauges = {"num_requests_running": 12 + second % 5, "num_requests_waiting": waiting}
        gauges["kv_cache_usage_perc"] = 0.995 if full else 0.4 + 0.1 * math.sin(second / 50)
        for name, value in gauges.items():
            frame[labels_of({**own, "__name__": f"vllm:{name}"})] = float(value)
        rate = 0.0 if hung else 2.0 if full else 5.0 + math.sin(second / 97)
        per_second = {"prompt_tokens_total": 300 * rate, "generation_tokens_total": 40 * rate}
        per_second["num_preemptions_total"] = 9.0 if full else 0.0
        for name, growth in per_second.items():
            self._count(frame, {**own, "__name__": f"vllm:{name}"}, growth)
        failing = within(second, 1_000, 1_800)
        shares = {"stop": 0.5, "length": 0.3, "abort": 0.1, "error": 0.1} if failing else {"stop": 0.6, "length": 0.4}
        for reason in ("stop", "length", "abort", "error"):
            growth = shares.get(reason, 0.0) * rate
            self._count(frame, {**own, "__name__": "vllm:request_success_total", "finished_reason": reason}, growth)
        self._latencies(frame, second, own, rate)

    def _latencies(self, frame: dict[Labels, float], second: int, own: dict[str, str], rate: float) -> None:
        slow = within(second, 300, 900)
        for name, bounds in BOUNDS.items():
            short = "inter_token_latency" if "token_seconds" in name and "first" not in name else name[5:-8]
            middle = (SLOW if slow else HEALTHY).get(short, 0.008)
            often = rate * 40 if "inter_token" in name else rate
            seen = ((middle / 2, 0.5), (middle, 0.3), (middle * 1.3, 0.2))
            for bound in (*bounds, math.inf):
                text = "+Inf" if bound == math.inf else str(float(bound))
                share = sum(weight for value, weight in seen if value <= bound)
                self._count(frame, {**own, "__name__": f"{name}_bucket", "le": text}, often * share)
            self._count(frame, {**own, "__name__": f"{name}_count"}, often)
            total = sum(value * weight for value, weight in seen) * often
            self._count(frame, {**own, "__name__": f"{name}_sum"}, total, whole=False)

    def _answers(self, frame: dict[Labels, float], second: int) -> None:
        """HTTP answers and refusals; a status appears with its first answer."""
        failing, hung = within(second, 1_000, 1_800), within(second, 2_800, 3_600)
        shares = {"2xx": 0.1, "4xx": 0.6, "5xx": 0.3} if failing else {"2xx": 1.0}
        for handler in ("/v1/completions", "/v1/chat/completions", "/metrics"):
            for status in ("2xx", "4xx", "5xx"):
                labels = {"__name__": "http_requests_total", "handler": handler, "method": "POST", "status": status}
                if status in shares or labels_of(labels) in self._totals:
                    self._count(frame, labels, 0.0 if hung else 4.0 * shares.get(status, 0.0))
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            labels = {"__name__": "vllm:admission_rejections_total", "model_name": "tiny", "reason": reason}
            self._count(frame, labels, 0.5 if failing else 0.0)

    def _count(self, frame: dict[Labels, float], pairs: dict[str, str], growth: float, *, whole: bool = True) -> None:
        labels = labels_of(pairs)
        total = self._totals.get(labels, 0.0) + growth * self._step
        self._totals[labels] = total
        frame[labels] = float(math.floor(total + 1e-6)) if whole else total
