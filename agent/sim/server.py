"""The API server of the stand-in: its start, its endpoints, the death of its engine and its own end.

In come a parsed command line, HTTP requests, the engine's messages and signals; out go answers, log lines and
an exit status. What matters most is the last: as with vLLM 0.32, when the engine dies while serving the API
server prints the cascade, fails what is in flight and exits **0** within a second; a start that fails exits
1; SIGTERM exits 0 and prints an EngineDeadError traceback that is no fault. The engine runs in a forked
child, started before the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from agent.sim.app import App
from agent.sim.client import EngineClient
from agent.sim.engine import EngineCore
from agent.sim.http import serve_connection
from agent.sim.messages import FromEngine, Ready
from agent.sim.metrics import Registry
from agent.sim.openai import OpenAi
from agent.sim.options import Settings
from agent.sim.process import Channel, fork_engine
from agent.sim.texts import ERR, OUT, Voice, template, write

#: How long the dying server still answers: /health goes to 503 and the port closes after about 0.1 s.
LINGER_SECONDS = 0.15
#: How much later than its engine's end a signal to the process group may be seen.
SIGNAL_GRACE_SECONDS = 0.05
#: A traceback of a dead stream grows with every stream before it; vLLM's does without end, this one up to
#: here.
MAX_STREAM_DEPTH = 32


def serve(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run one server to its end; returns the exit status."""
    voice = Voice(settings.version, os.getpid())
    voice.say("start-banner", model=settings.model, args=settings.non_default)
    sock = bind(settings)
    if sock is None:
        voice.say("port-in-use", ERR)
        return 1
    sock.set_inheritable(False)
    voice.say("start-api", max_model_len=settings.max_model_len, batched=settings.max_num_batched_tokens)

    def run_engine(channel: Channel) -> int:
        sock.close()
        voice.engine_is(os.getpid())
        return EngineCore(settings, voice, channel, environ).run()

    pid, channel = fork_engine(run_engine)
    voice.engine_is(pid)
    ready = _wait_ready(channel, pid)
    if ready is None:
        voice.say("failed-api", ERR)
        return 1
    return asyncio.run(ApiServer(settings, voice, sock, pid, channel, ready).run())


def bind(settings: Settings) -> socket.socket | None:
    """Bind as vLLM does before the engine starts, without listening yet; None when the address is taken."""
    if settings.uds:
        Path(settings.uds).unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX)
        address: str | tuple[str, int] = settings.uds
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (settings.host, settings.port)
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        return None
    return sock


def _wait_ready(channel: Channel, pid: int) -> Ready | None:
    """Block until the engine is ready; None when it has died, after it is reaped. SIGTERM ends both."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt("terminated")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        while (messages := channel.receive()) is not None:
            for message in messages:
                if "ready" in message:
                    return cast(FromEngine, message)["ready"]
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    os.waitpid(pid, 0)
    return None


class ApiServer:
    """One serving API server."""

    def __init__(
        self,
        settings: Settings,
        voice: Voice,
        sock: socket.socket,
        engine_pid: int,
        channel: Channel,
        pool: Ready,
    ) -> None:
        self.settings = settings
        self.voice = voice
        self.sock = sock
        self.engine_pid = engine_pid
        self.channel = channel
        self.registry = Registry(settings.version, settings.served[0])
        self.registry.info("vllm:cache_config_info", **_cache_config(settings, pool))
        self.client = EngineClient(channel, self.registry)
        openai = OpenAi(settings, self.client, self.registry, self._stream_error)
        self.app = App(settings, voice, self.client, self.registry, openai)
        self.stopping = asyncio.Event()
        self.engine_gone = asyncio.Event()
        self.connections: set[asyncio.Task[None]] = set()
        self.dead_streams = 0
        self.announced = False

    async def run(self) -> int:
        """Serve until the engine dies or a signal comes; returns 0, as vLLM does in both cases."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        self._start_lines()
        server = await self._listen()
        self.voice.uvicorn("INFO:     Application startup complete.", ERR)
        reader = asyncio.ensure_future(self._follow_engine())
        stats = asyncio.ensure_future(self._print_stats())
        asked = asyncio.ensure_future(self.stopping.wait())
        gone = asyncio.ensure_future(self.engine_gone.wait())
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        stats.cancel()
        if await self._asked():
            await self._asked_to_stop(server)
        else:
            await self._engine_died(server)
        for task in (reader, asked, gone):
            task.cancel()
        self.voice.say("noise", ERR)
        return 0

    async def _asked(self) -> bool:
        """Whether this is a stop that was asked for.

        A SIGTERM to the whole process group can end the engine before the loop has seen its own signal.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), SIGNAL_GRACE_SECONDS)
        return self.stopping.is_set()

    def _start_lines(self) -> None:
        text = self.voice.fill(template("start-routes", self.settings.version), {"url": self.settings.url})
        for line in text.splitlines():
            if line.startswith("INFO:  "):
                if "startup complete" not in line:
                    self.voice.uvicorn(line, ERR)
            else:
                write(OUT, line + "\n")

    async def _listen(self) -> asyncio.AbstractServer:
        context = None
        if self.settings.ssl is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*self.settings.ssl)
        start = asyncio.start_unix_server if self.settings.uds else asyncio.start_server
        return await start(self._connected, sock=self.sock, ssl=context, backlog=2048, limit=64 << 10)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self.connections.add(task)
            task.add_done_callback(self.connections.discard)
        # asyncio would print a traceback for a connection that the shutdown cancels; uvicorn prints none.
        with contextlib.suppress(asyncio.CancelledError):
            await serve_connection(reader, writer, self.app.handle, self.app.access)

    # --- the engine

    async def _follow_engine(self) -> None:
        """Take in the engine's messages until its channel ends."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            try:
                data = self.channel.sock.recv(1 << 18, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionResetError:
                data = b""
            if not data:
                loop.remove_reader(self.channel.sock)
                done.set_result(None)
                return
            for message in self.channel.feed(data):
                if "dead" in message:
                    self.announced = True
                else:
                    self.client.take(cast(FromEngine, message))

        loop.add_reader(self.channel.sock, readable)
        await done
        self.engine_gone.set()

    async def _engine_died(self, server: asyncio.AbstractServer) -> None:
        """The cascade: what vLLM prints and answers when its engine is gone, then the end."""
        if not self.announced:
            self.voice.say("core-exited")
        self.voice.say("output-handler")
        self.client.fail_all()
        await asyncio.sleep(LINGER_SECONDS)
        server.close()
        await self._drain_connections(2.0)
        for line in template("http-down", self.settings.version).splitlines():
            self.voice.uvicorn(self.voice.fill(line, {}), ERR)
        if self.announced:
            self.voice.say("client-down")
        self._reap(kill=True)

    async def _asked_to_stop(self, server: asyncio.AbstractServer) -> None:
        """SIGTERM: abort at once, or with --shutdown-timeout let the requests finish first."""
        seconds = self.settings.shutdown_timeout
        mode = "drain" if seconds else "abort"
        self.voice.say("term", mode=mode, timeout=f"{seconds:g}")
        self.voice.say("term-client", timeout=f"{seconds:g}")
        self.client.closing = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.engine_pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(self.engine_gone.wait(), seconds + 0.5)
        except asyncio.TimeoutError:
            self.voice.say("term-kill")
            self._reap(kill=True)
        self.voice.say("term-client-end")
        self.voice.say("output-handler")
        self.client.fail_all()
        self.voice.say("term-end")
        server.close()
        self.voice.uvicorn("INFO:     Shutting down", ERR)
        await self._drain_connections(1.0)
        self.voice.uvicorn("INFO:     Waiting for application shutdown.", ERR)
        self.voice.uvicorn("INFO:     Application shutdown complete.", ERR)
        self._reap(kill=True)

    async def _drain_connections(self, seconds: float) -> None:
        """Give requests that are being answered a moment; idle connections end with the process."""
        busy = [task for task in self.connections if not task.done()]
        if self.app.load:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.app.unloaded.wait(), seconds)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)

    def _reap(self, *, kill: bool) -> None:
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine_pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.engine_pid, 0)

    def _stream_error(self) -> None:
        """The traceback of one stream that lost its engine; each is longer than the one before."""
        self.dead_streams += 1
        depth = min(self.dead_streams, MAX_STREAM_DEPTH)
        version = self.settings.version
        parts = (
            template("stream-head", version),
            template("stream-unit", version) * depth,
            template("stream-tail", version),
        )
        write(OUT, self.voice.fill("".join(parts), {}))

    async def _print_stats(self) -> None:
        """The throughput line, every ten seconds while there is traffic and once after."""
        client, last, idle = self.client, (0, 0), True
        while True:
            await asyncio.sleep(self.settings.stats_seconds)
            now = (client.prompt_tokens, client.generated_tokens)
            busy = now != last or client.stats[0] > 0
            if self.settings.log_stats and (busy or not idle):
                hit = 100 * client.cached_tokens / client.queried_tokens if client.queried_tokens else 0.0
                self.voice.say(
                    "stats",
                    pt=f"{(now[0] - last[0]) / self.settings.stats_seconds:.1f}",
                    gt=f"{(now[1] - last[1]) / self.settings.stats_seconds:.1f}",
                    running=client.stats[0],
                    waiting=client.stats[1],
                    kv=f"{100 * client.stats[2]:.1f}",
                    hit=f"{hit:.1f}",
                )
            last, idle = now, not busy


def _cache_config(settings: Settings, pool: Ready) -> dict[str, str]:
    """The labels of vllm:cache_config_info that depend on this server."""
    memory = settings.kv_cache_memory
    return {
        "block_size": str(settings.block_size),
        "effective_attention_block_size": str(settings.block_size),
        "enable_prefix_caching": str(settings.prefix_caching),
        "gpu_memory_utilization": str(settings.gpu_memory_utilization),
        "kv_cache_memory_bytes": str(memory) if memory else "None",
        "kv_cache_size_tokens": str(int(pool["tokens"])),
        "kv_cache_max_concurrency": str(pool["concurrency"]),
        "num_gpu_blocks": str(int(pool["blocks"])),
        "num_gpu_blocks_override": str(settings.blocks_override),
        "mamba_ssm_cache_dtype": "auto",
    }


def fail_value(settings_args: Mapping[str, object], model: str, version: str, message: str) -> int:
    """A value that pydantic refuses: the banner, the traceback, exit 1."""
    voice = Voice(version, os.getpid())
    voice.say("start-banner", model=model, args=settings_args)
    voice.say("value", ERR, error=message)
    return 1


def fail_usage(version: str, message: str) -> int:
    """A command line that argparse refuses: usage and error on stderr, exit 2."""
    Voice(version, os.getpid()).say("usage", ERR, error=message)
    return 2
