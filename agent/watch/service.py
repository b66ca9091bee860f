"""The watcher as a whole: configuration, journal, servers, notifiers, API, signals.

In: the command line and the environment. Out: the exit code of ``agent watch``. SIGHUP reads the configuration
again (a broken file is reported and the old one stays); SIGTERM and SIGINT end the watching and never the server.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import msgspec

from agent import __version__
from agent.config import Config, Server, load
from agent.diagnose import load_catalogue
from agent.errors import AgentError, NotFoundError, UsageError
from agent.journal import Journal
from agent.model import Action, Clock, Incident, SystemClock, rfc3339
from agent.notify import Dispatcher, build_notifiers
from agent.remediate import Guard, Policy
from agent.serve import AgentMetrics, start_api
from agent.watch.narrate import Narrator
from agent.watch.report import Report
from agent.watch.server import ServerWatch
from agent.watch.tasks import every, supervise
from agent.watch.world import Current, ServerSpec, World

UPKEEP_SECONDS = 5.0
FLUSH_SECONDS = 3.0
PRUNE_SECONDS = 86400.0
KEPT = timedelta(days=90)


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """What ``agent watch`` was told; everything but the server may come from the configuration."""

    config: Path | None = None
    run_dir: Path | None = None
    url: str | None = None
    logs: tuple[Path, ...] = ()
    listen: str | None = None
    state_dir: Path | None = None
    default_state_dir: Path | None = None
    name: str | None = None
    dry_run: bool = False


async def serve(given: CommandLine, *, environ: Mapping[str, str], out: TextIO) -> int:
    """Watch until a signal says stop. Raises AgentError for what the caller got wrong."""
    clock = SystemClock()
    settings = settings_of(given, environ)
    specs = specs_of(given, settings, environ)
    with Journal.open(Path(settings.state_dir), clock) as journal:
        watcher = Watcher(settings, specs, journal, clock, out)
        return await watcher.run(lambda: settings_of(given, environ))


def settings_of(given: CommandLine, environ: Mapping[str, str]) -> Config:
    """The configuration with the command line on top. Raises ConfigError."""
    settings = load(given.config, environ)
    changes: dict[str, Any] = {}
    if given.listen is not None:
        changes["listen"] = given.listen
    default = Config().state_dir
    if given.state_dir is not None:
        changes["state_dir"] = str(given.state_dir)
    elif settings.state_dir == default and given.default_state_dir is not None:
        changes["state_dir"] = str(given.default_state_dir)
    if given.dry_run:
        changes["dry_run"] = True
    return msgspec.structs.replace(settings, **changes)


def specs_of(given: CommandLine, settings: Config, environ: Mapping[str, str]) -> tuple[ServerSpec, ...]:
    """The servers to watch: the command line's one, else the configuration's, else the run-dir of the environment."""
    run_dir = given.run_dir
    if run_dir is None and given.url is None and not settings.servers and environ.get("VLLM_AGENT_RUN_DIR"):
        run_dir = Path(environ["VLLM_AGENT_RUN_DIR"])
    if run_dir is not None or given.url is not None:
        name = given.name or (run_dir.name if run_dir is not None else "vllm")
        key = settings.api_key(name)
        return (
            ServerSpec(
                name=name,
                run_dir=run_dir,
                url=given.url,
                logs=given.logs,
                api_key=key.reveal() if key else None,
            ),
        )
    if not settings.servers:
        raise UsageError(
            "no server to watch was named",
            remedy="give --run-dir DIR (with `agent launch`), --url URL, or servers: in the configuration",
        )
    return tuple(_spec(server, settings) for server in settings.servers)


def _spec(server: Server, settings: Config) -> ServerSpec:
    key = settings.api_key(server.name)
    url = server.url + (server.root_path or "") if server.url else None
    return ServerSpec(
        name=server.name,
        run_dir=Path(server.run_dir) if server.run_dir else None,
        url=url,
        logs=tuple(Path(path) for path in server.log),
        api_key=key.reveal() if key else None,
        tls_ca=server.tls_ca,
    )


class Watcher:
    """All servers of one process; :class:`agent.serve.Backend` for the API."""

    def __init__(
        self, settings: Config, specs: tuple[ServerSpec, ...], journal: Journal, clock: Clock, out: TextIO
    ) -> None:
        self._current = Current(settings)
        self._journal = journal
        self._clock = clock
        self._started_at = rfc3339(clock.now())
        self._narrator = Narrator(out, clock)
        self._metrics = AgentMetrics(clock)
        self._guard = Guard(journal, clock, Policy.from_settings(settings))
        self._dispatcher = Dispatcher(journal, build_notifiers(settings), clock, observe=self._metrics.notification)
        report = Report(self._narrator, self._metrics, self._dispatcher)
        world = World(
            current=self._current,
            journal=journal,
            catalogue=load_catalogue(),
            clock=clock,
            guard=self._guard,
            metrics=self._metrics,
            narrator=self._narrator,
            publish=report.incident,
        )
        self._servers = {spec.name: ServerWatch(spec, world) for spec in specs}
        self._run_dirs = tuple(spec.run_dir for spec in specs if spec.run_dir is not None)

    async def run(self, reread: Callable[[], Config]) -> int:
        """Until SIGTERM or SIGINT. Returns the exit code."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload, reread)
        settings = self._current.value
        api = await start_api(self, settings.listen, self._token, self._metrics)
        self._narrator.line(f"agent {__version__} watches {', '.join(self._servers)}; API on {settings.listen}")
        for notice in self._journal.notices:
            self._narrator.line(notice)
        tasks = [asyncio.create_task(self._task(name, body)) for name, body in self._bodies().items()]
        try:
            await stop.wait()
            await self._dispatcher.flush(FLUSH_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await api.close()
        return 0

    def _bodies(self) -> dict[str, Callable[[], Awaitable[None]]]:
        bodies: dict[str, Callable[[], Awaitable[None]]] = {
            f"server {name}": watch.run for name, watch in self._servers.items()
        }
        bodies["notifiers"] = self._dispatcher.run
        bodies["pruning"] = lambda: every(PRUNE_SECONDS, self._prune, self._clock)
        bodies["upkeep"] = lambda: every(UPKEEP_SECONDS, self._upkeep, self._clock)
        return bodies

    async def _task(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        await supervise(name, body, self._clock, self._narrator.line)

    async def _prune(self) -> None:
        self._journal.prune(self._clock.now() - KEPT)

    async def _upkeep(self) -> None:
        self._journal.retry()
        self._metrics.set_journal(self._journal.healthy)
        for notifier in self._dispatcher.status():
            self._metrics.set_notifications_pending(notifier.name, notifier.pending)
        self._metrics.set_frozen(any(watch.evidence.frozen() for watch in self._servers.values()))

    def _token(self) -> str | None:
        """The token of the run-dir, read when it is needed: the launcher may make it later than we start."""
        for folder in (*self._run_dirs, self._journal.state_dir):
            try:
                return (folder / "token").read_text().strip() or None
            except OSError:
                continue
        return None

    def _reload(self, reread: Callable[[], Config]) -> None:
        """SIGHUP. What cannot change under way is said; a broken file changes nothing."""
        try:
            settings = reread()
        except AgentError as error:
            self._narrator.line(f"configuration not read again, the old one stays: {error}")
            return
        old = self._current.value
        for fixed in ("listen", "state_dir", "servers"):
            if getattr(settings, fixed) != getattr(old, fixed):
                self._narrator.line(f"`{fixed}` has changed; it takes effect when the watcher is started again")
        self._current.value = settings
        self._guard.policy = Policy.from_settings(settings)
        self._narrator.line("configuration read again")

    # -- agent.serve.Backend ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "started_at": self._started_at,
            "frozen": any(watch.evidence.frozen() for watch in self._servers.values()),
            "servers": [watch.status() for watch in self._servers.values()],
            "notifiers": [msgspec.to_builtins(one) for one in self._dispatcher.status()],
            "journal": {"healthy": self._journal.healthy, "error": self._journal.last_error},
        }

    def incidents(self, limit: int) -> tuple[Incident, ...]:
        return self._journal.incidents(limit=limit)

    def incident(self, incident_id: str) -> Incident | None:
        return self._journal.incident(incident_id)

    async def approve(self, action_id: str, actor: str) -> Action:
        return self._owner(action_id).approve(action_id, actor)

    async def deny(self, action_id: str, actor: str) -> Action:
        return self._owner(action_id).deny(action_id, actor)

    async def freeze(self, actor: str) -> None:
        self._journal.append_event("freeze", None, {"actor": actor})
        for watch in self._servers.values():
            await watch.freeze(True)

    async def thaw(self, actor: str) -> None:
        self._journal.append_event("thaw", None, {"actor": actor})
        for watch in self._servers.values():
            await watch.freeze(False)

    async def reset_breaker(self, server: str | None, actor: str) -> tuple[str, ...]:
        if server is not None and server not in self._servers:
            raise NotFoundError(f"no server named {server} is watched", remedy="see /api/v1/status")
        names = [server] if server is not None else list(self._servers)
        opened = tuple(name for name in names if self._guard.reset_breaker(name))
        self._journal.append_event("breaker-reset", server, {"actor": actor, "servers": list(opened)})
        for name in names:
            await self._servers[name].after_reset()
        return opened

    def _owner(self, action_id: str) -> ServerWatch:
        action = self._journal.action(action_id)
        incident = self._journal.incident(action.incident) if action is not None else None
        watch = self._servers.get(incident.server) if incident is not None else None
        if watch is None:
            raise NotFoundError(f"no action {action_id} is known", remedy="list them with: agent incidents")
        return watch
