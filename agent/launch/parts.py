"""The rooms a supervisor works with, and the two things it can be told.

Plain frozen values: no behaviour, so that every module may import them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.launch.children import Reaper
from agent.launch.cleanup import Cleanup
from agent.launch.clock import Clock
from agent.launch.events import Events
from agent.launch.guard import Guard
from agent.launch.logstore import LogStore
from agent.launch.rundir import RunDir
from agent.launch.settings import Settings
from agent.launch.surroundings import Surroundings
from agent.launch.tee import Tee


@dataclass(frozen=True)
class Parts:
    """The rooms that the supervisor works with."""

    settings: Settings
    clock: Clock
    run_dir: RunDir
    reaper: Reaper
    guard: Guard
    log: LogStore
    tee: Tee
    events: Events
    surroundings: Surroundings
    cleanup: Cleanup
    say: Callable[[str], None]


@dataclass(frozen=True)
class Intent:
    """What somebody asked for. ``leave`` ends the launcher, else the server is started again."""

    word: str
    leave: bool
    verify_memory: bool = True


@dataclass(frozen=True)
class Hold:
    """A watcher decides about exit ``exit_seq`` until ``until`` (monotonic seconds)."""

    exit_seq: int
    until: float
