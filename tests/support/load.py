"""A bounded load generator for the completions API: so many requests, so many at once, every outcome counted.

In: a base URL and the shape of the load. Out: :class:`Outcomes`. A status code alone proves nothing here: a
stream that vLLM breaks off ends with HTTP 200, an error object and ``[DONE]``
(vllm/entrypoints/openai/completion/serving.py), so streams are read to their end and counted apart. It
never retries: each lost request is seen.

Also a command: ``python -m tests.support.load --url http://127.0.0.1:8000 --requests 64`` prints the
outcomes as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field

import aiohttp

WORDS = ("card", "request", "answer", "token", "second", "byte", "queue", "batch", "slow", "full")
OK = "answered"


@dataclass(frozen=True)
class Shape:
    """One load: ``requests`` in all, ``concurrency`` at once, ``max_tokens`` each (end of sequence
    ignored).
    """

    requests: int = 64
    concurrency: int = 64
    max_tokens: int = 64
    prompt_words: int = 12
    stream: bool = False
    model: str = "tiny"
    timeout_seconds: float = 120.0
    prompt_tokens: int = 0
    prompt_spread: int = 0
    prompt_logprobs: int = 0


@dataclass
class Outcomes:
    """How often each outcome was seen, and how long the answered requests took (seconds).

    Outcomes: ``answered``; ``http_NNN``; ``reset`` (connection refused, reset or cut); ``truncated`` (a
    stream without ``[DONE]``); ``error_in_stream`` (an error object inside a 200 stream); ``timeout``.
    """

    counts: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    first_failure: str | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def answered(self) -> int:
        return self.counts[OK]

    @property
    def lost(self) -> int:
        return self.total - self.answered

    def quantile(self, share: float) -> float | None:
        ordered = sorted(self.latencies)
        return round(ordered[int(share * (len(ordered) - 1))], 4) if ordered else None

    def record(self, outcome: str, seconds: float, note: str = "") -> None:
        self.counts[outcome] += 1
        if outcome == OK:
            self.latencies.append(seconds)
        elif self.first_failure is None:
            self.first_failure = f"{outcome}: {note}"[:300]

    def summary(self) -> dict[str, object]:
        """As JSON-ready figures."""
        return {
            "counts": dict(self.counts),
            "seconds": round(self.seconds, 3),
            "p50_seconds": self.quantile(0.5),
            "p95_seconds": self.quantile(0.95),
            "max_seconds": self.quantile(1.0),
            "first_failure": self.first_failure,
        }

    def __str__(self) -> str:
        others = {name: n for name, n in self.counts.items() if name != OK}
        return f"{self.answered} of {self.total} answered in {self.seconds:.1f} s" + (f", {others}" if others else "")


def judge(status: int, text: str, stream: bool) -> str:
    """The outcome that one whole response stands for."""
    if status != 200:
        return f"http_{status}"
    if not stream:
        return OK
    if '"error"' in text:
        return "error_in_stream"
    return OK if "data: [DONE]" in text else "truncated"


def request_body(shape: Shape, number: int) -> dict[str, object]:
    """The completions request number ``number``; every number has its own prompt, so no cache answers for
    it.
    """
    words = random.Random(number)
    prompt: object = " ".join(words.choice(WORDS) for _ in range(shape.prompt_words)) + f" {number}"
    if shape.prompt_tokens:
        length = shape.prompt_tokens + words.randint(-shape.prompt_spread, shape.prompt_spread)
        prompt = [words.randrange(6, 500) for _ in range(length)]
    body: dict[str, object] = {
        "model": shape.model,
        "prompt": prompt,
        "max_tokens": shape.max_tokens,
        "ignore_eos": True,
        "stream": shape.stream,
    }
    return body | ({"prompt_logprobs": shape.prompt_logprobs} if shape.prompt_logprobs else {})


async def ask(session: aiohttp.ClientSession, url: str, shape: Shape, number: int) -> tuple[str, str]:
    """Send one request; ``(outcome, note)``. Never raises for what a server does."""
    body = request_body(shape, number)
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            text = await response.text()
            return judge(response.status, text, shape.stream), text[-200:]
    except asyncio.TimeoutError:
        return "timeout", f"no answer within {shape.timeout_seconds} s"
    except (aiohttp.ClientError, OSError) as error:
        return "reset", repr(error)


def new_session(shape: Shape) -> aiohttp.ClientSession:
    """A session without a limit of its own and with the shape's timeout; environment proxies are ignored."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=shape.timeout_seconds),
    )


async def burst(url: str, shape: Shape) -> Outcomes:
    """Send ``shape.requests`` requests, at most ``shape.concurrency`` at once, and wait for all."""
    outcomes = Outcomes()
    gate = asyncio.Semaphore(shape.concurrency)
    begun = time.monotonic()
    async with new_session(shape) as session:

        async def one(number: int) -> None:
            async with gate:
                sent = time.monotonic()
                outcome, note = await ask(session, url, shape, number)
                outcomes.record(outcome, time.monotonic() - sent, note)

        await asyncio.gather(*(one(number) for number in range(shape.requests)))
    outcomes.seconds = time.monotonic() - begun
    return outcomes


class SteadyLoad:
    """Keeps ``shape.concurrency`` requests in flight until the ``async with`` block ends
    (``shape.requests`` is unused).

    At the end the requests in flight are awaited, so that none is counted as lost because of the generator
    itself.
    """

    def __init__(self, url: str, shape: Shape, pause_seconds: float = 0.0) -> None:
        self.outcomes = Outcomes()
        self._url = url
        self._shape = shape
        self._pause = pause_seconds
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> SteadyLoad:
        self._begun = time.monotonic()
        self._session = new_session(self._shape)
        self._tasks = [asyncio.create_task(self._client(n)) for n in range(self._shape.concurrency)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._session.close()
        self.outcomes.seconds = time.monotonic() - self._begun

    async def _client(self, client: int) -> None:
        number = client * 1_000_000
        while not self._stop.is_set():
            number += 1
            sent = time.monotonic()
            outcome, note = await ask(self._session, self._url, self._shape, number)
            self.outcomes.record(outcome, time.monotonic() - sent, note)
            # A dead server refuses at once: without this pause the generator would spin.
            await asyncio.sleep(self._pause if outcome == OK else max(self._pause, 0.2))


class BackgroundLoad:
    """:class:`SteadyLoad` in a thread of its own, for callers without an event loop.

    ``outcomes`` may be read at any time; it is complete after the ``with`` block.
    """

    def __init__(self, url: str, shape: Shape, pause_seconds: float = 0.0) -> None:
        self.outcomes = Outcomes()
        self._arguments = (url, shape, pause_seconds)
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)

    def __enter__(self) -> BackgroundLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(self._arguments[1].timeout_seconds + 10)

    async def _run(self) -> None:
        load = SteadyLoad(*self._arguments)
        self.outcomes = load.outcomes
        async with load:
            await asyncio.to_thread(self._end.wait)


def run_burst(url: str, shape: Shape) -> Outcomes:
    """:func:`burst` for callers without an event loop."""
    return asyncio.run(burst(url, shape))


def main(argv: list[str]) -> int:
    """Command line: exit 0 where every request was answered, else 1."""
    parser = argparse.ArgumentParser(prog="load", description="bounded load on /v1/completions")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    for name, value in asdict(Shape()).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(value), default=value)
    options = vars(parser.parse_args(argv))
    outcomes = run_burst(options.pop("url"), Shape(**options))
    sys.stdout.write(json.dumps(outcomes.summary()) + "\n")
    return 0 if outcomes.lost == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
