"""The watcher as a whole: configuration, journal, servers, notifiers, API, signals.

In: the command line and the environment. Out: the exit code of ``agent watch``. SIGHUP reads the configuration
again (a broken file is reported and the old one stays); SIGTERM and SIGINT end the watching and never the server.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import msgspec

from agent import __version__
from agent.config import Config
from agent.diagnose import load_catalogue
from agent.errors import AgentError, NotFoundError
from agent.journal import Journal
from agent.model import Action, Alert, AlertState, Clock, Incident, SystemClock, rfc3339
from agent.notify import Dispatcher, build_notifiers, build_pushers
from agent.remediate import Guard, Policy
from agent.serve import AgentMetrics, start_api
from agent.watch.judges import OWN_SECONDS, Judges
from agent.watch.judging import JudgeWorld
from agent.watch.narrate import Narrator, Troubles
from agent.watch.report import Report
from agent.watch.rulebook import read_rulebook, rulebook
from agent.watch.server import ServerWatch
from agent.watch.specs import CommandLine, settings_of, specs_of
from agent.watch.tasks import OneTask, end, every, together
from agent.watch.world import Current, ServerSpec, World

UPKEEP_SECONDS = 5.0
FLUSH_SECONDS = 3.0
PRUNE_SECONDS = 86400.0
KEPT = timedelta(days=90)


async def serve(given: CommandLine, *, environ: Mapping[str, str], out: TextIO) -> int:
    """Watch until a signal says stop. Raises AgentError for what the caller got wrong."""
    clock = SystemClock()
    settings = settings_of(given, environ)
    specs = specs_of(given, settings, environ)
    with Journal.open(Path(settings.state_dir), clock) as journal:
        watcher = Watcher(settings, specs, journal, clock, out)
        return await watcher.run(lambda: settings_of(given, environ))


def read_token(folders: Iterable[Path]) -> str | None:
    """The token of the first folder that has one, read when it is needed: the launcher may make it later than we
    start. A file that is no text holds none, so that writing is refused in words.
    """
    for folder in folders:
        try:
            return (folder / "token").read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            continue
    return None


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
        self._troubles = Troubles(self._narrator)
        self._metrics = AgentMetrics(clock)
        self._guard = Guard(journal, clock, Policy.from_settings(settings))
        observe = self._metrics.notification
        pushers = build_pushers(settings, clock, observe)
        self._dispatcher = Dispatcher(journal, build_notifiers(settings), clock, pushers=pushers, observe=observe)
        self._report = Report(self._narrator, self._metrics, self._dispatcher, clock)
        self._judges = self._make_judges()
        self._rereading = OneTask(self._not_reread)
        self._wanted: Config | None = None  # whose rules are to be read next
        world = World(
            current=self._current,
            journal=journal,
            catalogue=load_catalogue(),
            clock=clock,
            guard=self._guard,
            metrics=self._metrics,
            narrator=self._narrator,
            publish=self._report.incident,
            judges=self._judges,
        )
        self._servers = {spec.name: ServerWatch(spec, world) for spec in specs}
        self._run_dirs = tuple(spec.run_dir for spec in specs if spec.run_dir is not None)

    def _make_judges(self) -> Judges | None:
        settings = self._current.value
        book = rulebook(settings)
        if book is None:
            return None
        world = JudgeWorld(
            clock=self._clock,
            journal=self._journal,
            metrics=self._metrics,
            say=self._narrator.line,
            trouble=self._troubles.saw,
            tell=self._alert,
            remind=self._report.remind,
            runbook_base=lambda: self._current.value.runbook_base_url,
        )
        return Judges(book, world, settings.listen)

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
        if self._judges is not None and self._judges.problem is not None:
            self._narrator.line(f"only the shipped rules are judged: {self._judges.problem}")
        work = asyncio.create_task(together(self._bodies(), self._clock, self._narrator.line))
        try:
            await stop.wait()
            await self._dispatcher.flush(FLUSH_SECONDS)
        finally:
            await self._rereading.stop()
            await end([work])
            if self._judges is not None:
                self._judges.end()
            await api.close()
        return 0

    def _bodies(self) -> dict[str, Callable[[], Awaitable[None]]]:
        bodies: dict[str, Callable[[], Awaitable[None]]] = {
            f"server {name}": watch.run for name, watch in self._servers.items()
        }
        bodies["notifiers"] = self._dispatcher.run
        bodies["pruning"] = lambda: every(lambda: PRUNE_SECONDS, self._prune, self._clock)
        if self._judges is not None:
            bodies["rules"] = lambda: every(lambda: OWN_SECONDS, self._judge, self._clock)
        bodies["upkeep"] = lambda: every(lambda: UPKEEP_SECONDS, self._upkeep, self._clock)
        return bodies

    async def _judge(self) -> None:
        if self._judges is not None:
            await self._judges.round()
        self._report.look()

    def _alert(self, alert: Alert) -> None:
        """A changed alert: kept for the timeline of its server, then told."""
        if alert.state is not AlertState.PENDING:
            self._journal.append_event("alert", alert.server, msgspec.to_builtins(alert))
        self._report.alert(alert)

    async def _prune(self) -> None:
        self._journal.prune(self._clock.now() - KEPT)

    async def _upkeep(self) -> None:
        self._journal.retry()
        self._metrics.set_journal(self._journal.healthy)
        self._troubles.saw("the journal", self._journal.last_error, "it is kept in memory and written later")
        for notifier in self._dispatcher.status():
            self._metrics.set_notifications_pending(notifier.name, notifier.pending)
            waiting = f"{notifier.pending} wait, {notifier.parked} are given up"
            self._troubles.saw(notifier.name, notifier.error, waiting)
        self._metrics.set_frozen(any(watch.evidence.frozen() for watch in self._servers.values()))

    def _token(self) -> str | None:
        return read_token((*self._run_dirs, self._journal.state_dir))

    def _reload(self, reread: Callable[[], Config]) -> None:
        """SIGHUP. What cannot change under way is said; a broken file changes nothing."""
        try:
            settings = reread()
        except AgentError as error:
            self._narrator.line(f"configuration not read again, the old one stays: {error}")
            return
        old = self._current.value
        for fixed in ("listen", "state_dir", "servers", "slack", "alertmanager", "secrets"):
            if getattr(settings, fixed) != getattr(old, fixed):
                self._narrator.line(f"`{fixed}` has changed; it takes effect when the watcher is started again")
        self._current.value = settings
        self._guard.policy = Policy.from_settings(settings)
        self._narrator.line("configuration read again")
        self._reread_rules(settings)

    def _reread_rules(self, settings: Config) -> None:
        """Compiling takes a third of a second, so it is done in a thread."""
        if settings.rules.enabled is not (self._judges is not None):
            self._narrator.line("`rules.enabled` has changed; it takes effect when the watcher is started again")
        elif self._judges is not None:
            self._wanted = settings
            self._rereading.start(self._adopt_rules)

    async def _adopt_rules(self) -> None:
        """Once more where it was asked for meanwhile: the files may have changed behind the reader's back."""
        while self._judges is not None and (settings := self._wanted) is not None:
            self._wanted = None
            try:
                book = await asyncio.to_thread(read_rulebook, settings, self._judges.profiles)
            except AgentError as error:
                self._not_reread(error)
            else:
                self._judges.adopt(book)

    def _not_reread(self, error: Exception) -> None:
        self._narrator.line(f"rules not read again, the old ones stay: {error}")

    # -- agent.serve.Backend ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "started_at": self._started_at,
            "frozen": any(watch.evidence.frozen() for watch in self._servers.values()),
            "servers": [watch.status() for watch in self._servers.values()],
            "notifiers": [msgspec.to_builtins(one) for one in self._dispatcher.status()],
            "rules": {
                "enabled": self._judges is not None,
                "problem": self._judges.problem if self._judges is not None else None,
            },
            "journal": {"healthy": self._journal.healthy, "error": self._journal.last_error},
        }

    def alerts(self) -> tuple[Alert, ...]:
        return self._judges.alerts() if self._judges is not None else ()

    def rules(self) -> list[Mapping[str, Any]]:
        return self._judges.rules() if self._judges is not None else []

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
        self._narrator.line(f"frozen by {actor}: nothing is done to any server until `agent thaw`")
        await self._each(self._servers, lambda watch: watch.freeze(True))

    async def thaw(self, actor: str) -> None:
        self._journal.append_event("thaw", None, {"actor": actor})
        self._narrator.line(f"thawed by {actor}: the agent acts again")
        await self._each(self._servers, lambda watch: watch.freeze(False))

    async def _each(self, names: Iterable[str], order: Callable[[ServerWatch], Awaitable[None]]) -> None:
        """Give the order to every server; one that cannot take it keeps no other from it, and is named at the end."""
        failures: list[tuple[str, AgentError]] = []
        for name in names:
            try:
                await order(self._servers[name])
            except AgentError as error:
                failures.append((name, error))
        if failures:
            first, problem = failures[0]
            more = f" (and {len(failures) - 1} more servers)" if failures[1:] else ""
            raise AgentError(f"{first}: {problem.message}{more}", where=problem.where, remedy=problem.remedy)

    async def reset_breaker(self, server: str | None, actor: str) -> tuple[str, ...]:
        if server is not None and server not in self._servers:
            raise NotFoundError(f"no server named {server} is watched", remedy="see /api/v1/status")
        names = [server] if server is not None else list(self._servers)
        opened = tuple(name for name in names if self._guard.reset_breaker(name))
        self._journal.append_event("breaker-reset", server, {"actor": actor, "servers": list(opened)})
        if opened:
            self._narrator.line(f"circuit breaker of {', '.join(opened)} closed by {actor}")
        await self._each(names, ServerWatch.after_reset)
        return opened

    def _owner(self, action_id: str) -> ServerWatch:
        action = self._journal.action(action_id)
        incident = self._journal.incident(action.incident) if action is not None else None
        watch = self._servers.get(incident.server) if incident is not None else None
        if watch is None:
            raise NotFoundError(f"no action {action_id} is known", remedy="list them with: agent incidents")
        return watch
