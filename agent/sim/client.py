"""The API server's half of the engine: hands requests over, follows their tokens, keeps the `vllm:*` metrics.

In come requests from the handlers and messages from the engine; out go tokens to each request's `Generation`
and values to the `Registry`, at the points where vLLM's `IterationStats` takes them: time to first token and
between tokens here, in the API server, the rest when a request is done. When the engine is gone every
generation that is still open gets the error; nothing is ever started again here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.sim.faults import Fault
from agent.sim.messages import Add, FromEngine, Gauges, ToEngine
from agent.sim.metrics import Registry
from agent.sim.process import Channel


class EngineDead(Exception):
    """vLLM's EngineDeadError."""

    MESSAGE = "EngineCore encountered an issue. See stack trace (above) for the root cause."

    def __init__(self) -> None:
        super().__init__(self.MESSAGE)


@dataclass
class Generation:
    """One sequence being generated; times on the monotonic clock."""

    id: int
    name: str
    prompt: int
    max_tokens: int
    seed: int
    streamed: bool
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    cached: int = 0
    reason: str | None = None
    dead: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class EngineClient:
    """Everything the API server knows of its engine."""

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._metrics = registry
        self._next = 0
        self.open: dict[int, Generation] = {}
        self.dead = False
        self.closing = False
        self.stats: tuple[int, int, float] = (0, 0, 0.0)
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.queried_tokens = 0
        self.cached_tokens = 0
        self._uncounted = (0, 0)

    def submit(
        self, name: str, prompt: int, max_tokens: int, hashes: list[int], seed: int, *, streamed: bool
    ) -> Generation:
        """Hand one sequence over; raises `EngineDead`, or RuntimeError once the server is shutting down."""
        if self.dead:
            raise EngineDead
        if self.closing:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._next += 1
        generation = Generation(self._next, name, prompt, max_tokens, seed, streamed)
        try:
            add: Add = {
                "id": generation.id,
                "name": name,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "hashes": hashes,
            }
            self._channel.send({"add": add})
        except (BrokenPipeError, ConnectionResetError):
            raise EngineDead from None
        self.open[generation.id] = generation
        return generation

    def abort(self, generations: Iterable[Generation]) -> None:
        """The client is gone: vLLM counts such requests nowhere."""
        ids = [g.id for g in generations if self.open.pop(g.id, None) is not None]
        if ids and not self.dead:
            self._tell({"abort": ids})

    def set_faults(self, faults: Iterable[Fault]) -> None:
        """Give the engine another set of faults."""
        self._tell({"faults": [(f.name, f.arg) for f in faults]})

    def _tell(self, message: ToEngine) -> None:
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # The end of the channel is seen, and told, by whoever reads it.

    def fail_all(self) -> list[Generation]:
        """The engine is gone: every open generation ends with the error; returns them in order of arrival."""
        self.dead = True
        ended = list(self.open.values())
        self.open.clear()
        for generation in ended:
            generation.dead = True
            generation.changed.set()
        return ended

    def take(self, message: FromEngine) -> None:
        """One message of the engine: a step's outcome."""
        now = time.monotonic()
        for number in message["started"]:
            generation = self.open.get(number)
            if generation is not None:
                generation.started = now
        for number in message["new"]:
            self._token(number, now)
        for number, reason, preemptions, cached in message["done"]:
            self._done(number, reason, preemptions, cached, now)
        if "gauges" in message:
            self._gauges(message["gauges"], len(message["new"]))

    def _token(self, number: int, now: float) -> None:
        generation = self.open.get(number)
        if generation is None:
            return
        generation.tokens += 1
        if generation.first is None:
            generation.first = now
            self._metrics.observe("vllm:time_to_first_token_seconds", now - generation.arrived)
        else:
            self._metrics.observe("vllm:inter_token_latency_seconds", now - generation.last)
        generation.last = now
        if generation.streamed:
            generation.changed.set()

    def _done(self, number: int, reason: str, preemptions: int, cached: int, now: float) -> None:
        generation = self.open.pop(number, None)
        if generation is None:
            return
        generation.reason = reason
        generation.cached = cached
        generation.changed.set()
        started = generation.started or now
        first = generation.first or now
        observe = self._metrics.observe
        self._metrics.add("vllm:request_success_total", finished_reason=reason)
        observe("vllm:e2e_request_latency_seconds", now - generation.arrived)
        observe("vllm:request_queue_time_seconds", started - generation.arrived)
        observe("vllm:request_prefill_time_seconds", first - started)
        observe("vllm:request_decode_time_seconds", now - first)
        observe("vllm:request_inference_time_seconds", now - started)
        observe("vllm:request_prompt_tokens", generation.prompt)
        observe("vllm:request_generation_tokens", generation.tokens)
        observe("vllm:request_max_num_generation_tokens", generation.tokens)
        observe("vllm:request_params_n", 1)
        observe("vllm:request_params_max_tokens", generation.max_tokens)
        observe("vllm:request_num_preemptions", preemptions)
        observe("vllm:request_prefill_kv_computed_tokens", generation.prompt - cached)
        each = (now - first) / (generation.tokens - 1) if generation.tokens > 1 else 0.0
        observe("vllm:request_time_per_output_token_seconds", each)

    def _gauges(self, gauges: Gauges, new: int) -> None:
        # As in vLLM, a prompt is counted with the first token that it leads to, and a step that leads to none is no
        # iteration (vllm/v1/engine/async_llm.py): through a prefill in chunks only the gauges move.
        self._uncounted = (self._uncounted[0] + gauges["prompt"], self._uncounted[1] + gauges["cached"])
        prompt, cached = self._uncounted if new else (0, 0)
        if new:
            self._uncounted = (0, 0)
        self.stats = (gauges["running"], gauges["waiting"], gauges["usage"])
        self.prompt_tokens += prompt + cached
        self.generated_tokens += new
        self.queried_tokens += gauges["queried"]
        self.cached_tokens += gauges["cached"]
        metrics = self._metrics
        metrics.set("vllm:num_requests_running", gauges["running"])
        metrics.set("vllm:num_requests_waiting", gauges["waiting"])
        metrics.set("vllm:num_requests_waiting_by_reason", gauges["waiting"], reason="capacity")
        metrics.set("vllm:kv_cache_usage_perc", gauges["usage"])
        metrics.add("vllm:prefix_cache_queries_total", gauges["queried"])
        metrics.add("vllm:prefix_cache_hits_total", gauges["cached"])
        metrics.add("vllm:num_preemptions_total", gauges["preempted"])
        metrics.add("vllm:prompt_tokens_total", prompt + cached)
        metrics.add("vllm:prompt_tokens_by_source_total", prompt, source="local_compute")
        metrics.add("vllm:prompt_tokens_by_source_total", cached, source="local_cache_hit")
        metrics.add("vllm:prompt_tokens_cached_total", cached)
        metrics.add("vllm:prompt_tokens_cached_by_source_total", cached, source="device")
        metrics.add("vllm:generation_tokens_total", new)
        if new:
            metrics.observe("vllm:iteration_tokens_total", prompt + new)
