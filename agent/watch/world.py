"""What every watched server shares, as arguments: time, journal, catalogue, guard, and the ways out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.config import Config
from agent.diagnose import Catalogue
from agent.journal import Journal
from agent.model import Clock, Incident
from agent.remediate import Guard
from agent.serve import AgentMetrics
from agent.watch.judges import Judges
from agent.watch.narrate import Narrator


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One server as configuration or command line name it: by run-dir (with hands) or by URL and log files."""

    name: str
    run_dir: Path | None = None
    url: str | None = None
    logs: tuple[Path, ...] = ()
    api_key: str | None = None
    tls_ca: str | None = None
    profile: str | None = None


class Current:
    """The configuration in force; SIGHUP replaces ``value``."""

    def __init__(self, value: Config) -> None:
        self.value = value


@dataclass(frozen=True, kw_only=True)
class World:
    """``publish`` tells notifiers, metrics and the terminal of a changed incident; it neither blocks nor raises.

    ``judges`` is None where no rule is judged.
    """

    current: Current
    journal: Journal
    catalogue: Catalogue
    clock: Clock
    guard: Guard
    metrics: AgentMetrics
    narrator: Narrator
    publish: Callable[[Incident], None]
    judges: Judges | None = None
