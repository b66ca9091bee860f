"""One GET to the server on this machine, by hand: status code and body, with a short limit.

In: an address and a path. Out: the status and the body, or None when nothing answered. Never verifies a
certificate (the server is our own child on loopback) and never keeps a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass

from agent.launch.command import Address

BODY_BYTES = 4 << 20
HEALTH_PATH = "/health"


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    body: bytes


async def get(address: Address, path: str, timeout: float) -> Reply | None:
    """None when nothing answered HTTP within ``timeout`` seconds."""
    try:
        return await asyncio.wait_for(_get(address, path), timeout)
    except (OSError, asyncio.TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
        return None


async def _get(address: Address, path: str) -> Reply:
    reader, writer = await _connect(address)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: */*\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        if match is None:
            raise ValueError("not HTTP")
        return Reply(int(match[1]), await _body(reader, head))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            writer.transport.abort()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body up to the end of the connection or its stated length; chunk sizes are left in, readers
    search text.
    """
    length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
    if length is not None:
        return await reader.readexactly(min(int(length[1]), BODY_BYTES))
    return await reader.read(BODY_BYTES)


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.uds is not None:
        return await asyncio.open_unix_connection(address.uds)
    if not address.tls:
        return await asyncio.open_connection(address.host, address.port)
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection(address.host, address.port, ssl=context)


_IN_FLIGHT = re.compile(rb"^vllm:num_requests_(?:running|waiting)\{[^}]*\} ([0-9.eE+-]+)$", re.MULTILINE)


async def requests_in_flight(address: Address) -> float | None:
    """Running and waiting requests as /metrics says; None when it does not say."""
    reply = await get(address, "/metrics", 2.0)
    if reply is None or reply.status != 200:
        return None
    values = _IN_FLIGHT.findall(reply.body)
    return sum(float(value) for value in values) if values else None
