"""One launcher put together: rooms, sockets, signals, and the order in which they start and end.

In: settings. Out: the exit code. The launcher is one thread with one asyncio loop: a second thread would
make forking the guard and the server unsafe, and nothing here waits for anything but descriptors.

Order at the start: run-dir and lock, guard, control socket, probe port, watcher, server; so a watcher never
misses the first start. At the end the server goes first and the watcher last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable

from agent.errors import AgentError
from agent.launch.children import Reaper, Tools, become_subreaper
from agent.launch.cleanup import Cleanup
from agent.launch.clock import Clock
from agent.launch.companion import Companion
from agent.launch.events import Events
from agent.launch.guard import Guard
from agent.launch.logstore import LogStore
from agent.launch.parts import Parts
from agent.launch.probes import ProbeServer
from agent.launch.rundir import RunDir, open_run_dir
from agent.launch.settings import Settings
from agent.launch.supervisor import Supervisor
from agent.launch.surroundings import Surroundings
from agent.launch.tee import Tee
from agent.launch.verbs import Verbs
from agent.launch.wire import ControlServer

FLUSH_SECONDS = 0.05
"""Time for the streams to send the last events before the sockets close."""


class Notices:
    """Lines on own stderr that never wait for a reader; before the loop runs they are kept."""

    def __init__(self) -> None:
        self._tee: Tee | None = None
        self._kept: list[str] = []

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tee = Tee(loop, 2, buffer_bytes=1 << 16)
        for text in self._kept:
            self(text)
        self._kept.clear()

    def __call__(self, text: str) -> None:
        if self._tee is None:
            self._kept.append(text)
        else:
            self._tee.write(f"agent launch: {text}\n".encode())

    def close(self) -> None:
        if self._tee is not None:
            self._tee.close()


def run(settings: Settings) -> int:
    """Run one launcher to its end. Raises AgentError for a run-dir, socket or probe port that cannot
    be used.
    """
    notices = Notices()
    run_dir = open_run_dir(settings.run_dir, notices, settings.allow_uids)
    guard = Guard(run_dir.lock_fd, settings.launch_id)
    return asyncio.run(_Launcher(settings, run_dir, guard, notices).run())


class _Launcher:
    def __init__(self, settings: Settings, run_dir: RunDir, guard: Guard, notices: Notices) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._guard = guard
        self._notices = notices

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._notices.attach(loop)
        reaper = Reaper(loop)
        self._watch_guard(reaper)
        problem = become_subreaper()
        parts, tools, supervisor = self._build(loop, reaper)
        if problem and os.getpid() != 1:
            supervisor.notice(f"orphans cannot be adopted: {problem}")
        verbs = Verbs(parts, supervisor, tools)
        control = ControlServer(
            self._run_dir, verbs.calls, verbs.streams,
            allow_uids=self._settings.allow_uids,
            allow_gids=self._settings.allow_gids | {self._run_dir.path.stat().st_gid},
        )  # fmt: skip
        probes = ProbeServer(supervisor, verbs)
        companion = self._companion(reaper, parts.events)
        self._handle_signals(loop, supervisor, companion)
        try:
            await control.start()
            await self._start_probes(probes, supervisor)
            if self._settings.watcher:
                companion.start()
            code = await supervisor.run()
            await asyncio.sleep(FLUSH_SECONDS)
        finally:
            await companion.stop()
            probes.close()
            control.close()
            verbs.close()
            parts.log.close()
            parts.tee.close()
            self._notices.close()
        return code

    def _build(self, loop: asyncio.AbstractEventLoop, reaper: Reaper) -> tuple[Parts, Tools, Supervisor]:
        settings, clock = self._settings, Clock()
        counters, notice = self._run_dir.read_counters()
        holder: list[Supervisor] = []
        events = Events(clock, counters.event_seq, lambda seq: holder[0].save_event_seq(seq))
        tools = Tools(reaper, set())
        surroundings = Surroundings(tools, settings.argv, settings.env)
        report = _reporter(self._notices, holder)
        cleanup = Cleanup(settings, clock, self._guard, surroundings, report)
        log = LogStore(self._run_dir.log_path, clock, self._notices)
        parts = Parts(
            settings=settings, clock=clock, run_dir=self._run_dir, reaper=reaper, guard=self._guard, log=log,
            tee=Tee(loop, 1), events=events, surroundings=surroundings, cleanup=cleanup, say=self._notices,
        )  # fmt: skip
        supervisor = Supervisor(parts, counters)
        holder.append(supervisor)
        if notice:
            supervisor.notice(notice)
        return parts, tools, supervisor

    def _companion(self, reaper: Reaper, events: Events) -> Companion:
        env = {**self._settings.env, "VLLM_AGENT_RUN_DIR": str(self._run_dir.path)}
        return Companion(self._settings.watcher, env, reaper, self._guard, events)

    async def _start_probes(self, probes: ProbeServer, supervisor: Supervisor) -> None:
        if self._settings.probe is None:
            return
        try:
            await probes.start(*self._settings.probe)
        except AgentError as error:
            if self._settings.probe_required:
                raise
            supervisor.notice(f"no probes: {error.where}: {error.message}; name a free address with --probe")

    def _watch_guard(self, reaper: Reaper) -> None:
        """A guard that somebody killed is replaced at once."""

        def replace(_: asyncio.Future[int]) -> None:
            self._guard.replace()
            self._watch_guard(reaper)

        reaper.expect(self._guard.pid).add_done_callback(replace)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop, supervisor: Supervisor, companion: Companion) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.ask_stop, f"signal {signal.Signals(number).name}")
        # A hang-up of the terminal must not end a server; a watcher reads its configuration again.
        loop.add_signal_handler(signal.SIGHUP, companion.send, signal.SIGHUP)


def _reporter(notices: Notices, holder: list[Supervisor]) -> Callable[[str], None]:
    """To the events once the supervisor is there, else to stderr."""

    def report(text: str) -> None:
        if holder:
            holder[0].notice(text)
        else:
            notices(text)

    return report


def fail(error: AgentError) -> int:
    """Print an error for a person; its exit code."""
    with contextlib.suppress(OSError):
        print(f"agent launch: error: {error}", file=sys.stderr)
    return error.exit_code
