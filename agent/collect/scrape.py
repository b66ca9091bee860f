"""The bytes of ``/metrics``, one GET a round.

In: an open HTTP session. Out: a :class:`Scrape` or a :class:`~agent.model.NotMeasured` with the reason. It does not
read what it fetched; :mod:`agent.series` does. Three bounds keep a strange server from costing the watcher: the size on
the wire, the size after decompression (a few kilobytes of gzip can hold gigabytes), and a growing pause after an answer
that was too large, so that it is not fetched and thrown away every second.

The Accept header asks for the classic text alone: in vLLM's client library the mere mention of OpenMetrics selects it
(prometheus_client, choose_encoder), and it says nothing more here. Compression costs the watched server's event loop a
few milliseconds an answer (zlib's highest level on 60 KB), so it is asked for only where a network lies between; an
answer that comes compressed all the same is read.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import msgspec

from agent.model import Clock, NotMeasured

BODY_LIMIT = 16 * 2**20
"""An engine's series take about 60 KB, so 16 MiB hold more than two hundred engines."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 600.0
ACCEPT = "text/plain;version=0.0.4;q=0.9,*/*;q=0.1"
_CHUNK = 65536
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. ``at``: monotonic seconds when it was complete; ``at_ms``: wall clock when it was asked for (the
    time that its samples bear, as in Prometheus); ``seconds``: how long it took.
    """

    body: bytes
    content_type: str
    at: float
    at_ms: int
    seconds: float


class TooLargeError(ValueError):
    """The answer is beyond the limit."""


class MetricsPage:
    """``/metrics`` of one server. ``url`` is its whole address."""

    def __init__(self, url: str, clock: Clock, *, local: bool, limit: int = BODY_LIMIT) -> None:
        self._url = url
        self._clock = clock
        self._limit = limit
        self._headers = {"Accept": ACCEPT, "Accept-Encoding": "identity" if local else "gzip"}
        self._pause = 0.0
        self._again_at = 0.0
        self._trouble = ""

    async def get(self, session: aiohttp.ClientSession) -> Scrape | NotMeasured:
        """Ask once; raises asyncio.TimeoutError, aiohttp.ClientError, OSError as the session does."""
        began, at_ms = self._clock.monotonic(), round(self._clock.now().timestamp() * 1000)
        if began < self._again_at:
            return unmeasured(f"{self._trouble}; it is asked again in {self._again_at - began:.0f} s")
        try:
            async with session.get(self._url, headers=self._headers) as response:
                if response.status != 200:
                    return unmeasured(f"{self._url} answered {response.status}")
                body = await bounded(response, self._limit)
                content_type = response.headers.get("Content-Type", "")
        except TooLargeError as error:
            return self._back_off(f"{self._url}: {error}")
        except ValueError as error:
            return unmeasured(f"{self._url}: {error}")
        self._pause = 0.0
        at = self._clock.monotonic()
        return Scrape(body=body, content_type=content_type, at=at, at_ms=at_ms, seconds=at - began)

    def _back_off(self, trouble: str) -> NotMeasured:
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._again_at = self._clock.monotonic() + self._pause
        self._trouble = trouble
        return unmeasured(f"{trouble}; it is asked again in {self._pause:.0f} s")


async def bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, decompressed; raises :class:`TooLargeError` or ValueError.

    The session must have been opened with ``auto_decompress=False``: what is unpacked is bounded here.
    """
    if (response.content_length or 0) > limit:
        response.close()
        raise TooLargeError(f"the answer is larger than {limit >> 20} MiB")
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    chunks: list[bytes] = []
    size = 0
    async for chunk in _plain(response.content.iter_chunked(_CHUNK), encoding):
        size += len(chunk)
        if size > limit:
            response.close()
            raise TooLargeError(f"the answer is larger than {limit >> 20} MiB")
        chunks.append(chunk)
    return b"".join(chunks)


async def _plain(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    if encoding in ("", "identity"):
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in _WINDOW:
        raise ValueError(f"the answer has the encoding {encoding!r}, which was not asked for")
    unpack = zlib.decompressobj(_WINDOW[encoding])
    try:
        async for chunk in chunks:
            while chunk:
                yield unpack.decompress(chunk, _CHUNK)
                chunk = unpack.unconsumed_tail
        yield unpack.flush()
    except zlib.error as error:
        raise ValueError(f"the answer cannot be decompressed: {error}") from None
    if not unpack.eof:
        raise ValueError("the compressed answer was cut off")


def is_local(url: str) -> bool:
    """Whether an http(s) address lies on this machine."""
    return urlsplit(url).hostname in _LOOPBACK


def unmeasured(reason: str) -> NotMeasured:
    """That nothing is known of the server's series."""
    return NotMeasured(check="vllm metrics", reason=reason)
