"""The start of the engine, printed as vLLM prints it, to its pool or to its failure.

In come the settings, the card and a way to pause; out goes the KV pool, or `Dead` after the failure's log
lines. The order is vLLM's: the device check comes before the weights, the compiler before the pool, and
every failure says what the numbers of `agent.sim.memory` say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from agent.sim import ptxas
from agent.sim.card import Card
from agent.sim.faults import find
from agent.sim.memory import GIB, Pool, StartFailure, plan
from agent.sim.options import Settings
from agent.sim.texts import ERR, Voice, template


class Dead(Exception):
    """The engine is over; ``code`` is its exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def config_text(settings: Settings, voice: Voice) -> str:
    """The configuration as vLLM prints it at the start and again when the engine dies."""
    values: dict[str, object] = {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "tp": settings.tensor_parallel_size,
        "eager": settings.eager,
        "served": settings.served[0],
        "batched": settings.max_num_batched_tokens,
    }
    return voice.fill(template("config", settings.version), values).rstrip()


class Startup:
    """One start; ``pause`` waits that many seconds and raises `Dead` when the start is called off."""

    def __init__(
        self,
        settings: Settings,
        voice: Voice,
        card: Card,
        environ: Mapping[str, str],
        pause: Callable[[float], None],
    ) -> None:
        self.settings = settings
        self.voice = voice
        self.card = card
        self.environ = environ
        self._pause = pause
        self.needs = card.needs

    def run(self) -> Pool:
        """Print what a start prints; the pool, or `Dead` with status 1 after the failure is printed."""
        settings = self.settings
        self.voice.say("start-engine", config=config_text(settings, self.voice))
        self.needs = replace(self.card.needs, others=self.card.others(settings.faults))
        self.card.needs = self.needs
        try:
            planned: Pool | StartFailure = plan(self.needs)
        except StartFailure as failure:
            planned = failure
        self._load(planned)
        path = ptxas.failing(self.environ, settings.arch) if find(self.settings.faults, "ptxas") else None
        if path is not None:
            sm = f"sm_{settings.arch}a"
            clock = time.strftime("%m%d %H:%M:%S.000000")
            self.voice.say("ptxas", ptxas=path, sm=sm, tmp="d2v9gy_u", tc=clock)
            raise Dead(1)
        if isinstance(planned, StartFailure):
            raise self._fail(planned)
        self._ready(planned)
        return planned

    def _load(self, planned: Pool | StartFailure) -> None:
        """The model is loaded, unless the failure comes before that."""
        if isinstance(planned, StartFailure) and planned.kind in ("device", "load"):
            return
        slow = find(self.settings.faults, "slow-load")
        seconds = slow.number(10) if slow else self.settings.start_seconds / 2
        shards = 4 if slow else 1
        began = time.monotonic()
        for done in range(shards + 1):
            spent = time.monotonic() - began
            self._progress(done, shards, spent)
            if done < shards:
                self._pause(seconds / shards)
        self.voice.say("start-loaded", weights=f"{self.needs.weights / GIB:.2f}", load_s=f"{seconds:.6f}")

    def _progress(self, done: int, shards: int, spent: float) -> None:
        """One line of tqdm's bar over the checkpoint's files."""
        left = "?, ?it"
        if done:
            left = f"00:{spent * (shards - done) / done:02.0f}, {done / max(spent, 0.001):.2f}it"
        percent, elapsed = f"{100 * done // shards:3d}", f"{spent:02.0f}"
        self.voice.say("start-load", ERR, percent=percent, done=done, shards=shards, elapsed=elapsed, left=left)

    def _fail(self, failure: StartFailure) -> Dead:
        if failure.kind == "blocks":
            self.voice.say("start-kv", pool=f"{max(0.0, self._printed_pool()):.2f}")
        if failure.kind == "load":
            self.voice.say("load-oom", error=failure.message)
        self.voice.say(f"failed-{failure.kind}", error=failure.message)
        self.voice.say(f"died-{failure.kind}", ERR, error=failure.message)
        return Dead(1)

    def _printed_pool(self) -> float:
        """GiB of the pool that did not suffice."""
        needs = self.needs
        available = int(needs.total * needs.utilisation) - needs.weights - needs.peak
        if needs.pool_cap_tokens is not None:
            available = min(available, needs.pool_cap_tokens * needs.kv_bytes_per_token)
        return available / GIB

    def _ready(self, pool: Pool) -> None:
        settings = self.settings
        self.voice.say("start-kv", pool=f"{pool.available / GIB:.2f}")
        self.voice.say(
            "start-kv-size",
            kv_tokens=f"{pool.tokens:,}",
            max_model_len_c=f"{settings.max_model_len:,}",
            concurrency=f"{pool.concurrency:.2f}",
        )
        self._pause(settings.start_seconds / 2)
        if not settings.eager:
            self.voice.say("start-graphs")
        self.voice.say("start-done", init_s=f"{settings.start_seconds:.2f}")
        self.card.hold(pool)
