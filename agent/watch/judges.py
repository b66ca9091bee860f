"""All judged targets of one watcher: each server's series, and the agent's own.

In: the rules, and the address of a server once it is known. Out: the judge of each target, all alerts and rules for the
API, and new rules for all of them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent.alerts import OwnContract
from agent.model import Alert
from agent.series import contract_for
from agent.watch.judging import JudgeWorld, TargetJudge
from agent.watch.rulebook import Rulebook

JOB, OWN_JOB = "vllm", "vllm-agent"
OWN_SECONDS = 5.0
"""The agent's own series are judged that often; cards and host are read no more often either."""


class Judges:
    """``listen`` is the agent's own address, the ``instance`` of its series."""

    def __init__(self, book: Rulebook, world: JudgeWorld, listen: str) -> None:
        self._book = book
        self._world = world
        self._servers: dict[str, TargetJudge] = {}
        self._profiles: dict[str, str | None] = {}
        self._contract = OwnContract()
        target = {"job": OWN_JOB, "instance": listen}
        self._own = TargetJudge(book.of_agent(), world, server="", target=target, contract=self._contract)
        self._own.restore()

    def of(self, name: str, profile: str | None, url: str) -> TargetJudge:
        """The judge of a server, made when its address is first known."""
        if name not in self._servers:
            target = {"job": JOB, "instance": instance(url) or name}
            judge = TargetJudge(
                self._book.of_server(profile), self._world, server=name, target=target, contract=contract_for(None)
            )
            judge.restore()
            self._servers[name], self._profiles[name] = judge, profile
        return self._servers[name]

    async def round(self) -> None:
        """Judge the agent's own series; keep what is due."""
        samples = self._world.metrics.samples()
        self._contract.see({sample.name for sample in samples})
        self._own.own(samples)
        await asyncio.gather(*(judge.save() for judge in self._all()))

    @property
    def profiles(self) -> frozenset[str]:
        """Those that servers were given and that stay theirs until the watcher is started again."""
        return frozenset(one for one in self._profiles.values() if one is not None and one in self._book.by_profile)

    def adopt(self, book: Rulebook) -> None:
        """Other rules from now on."""
        self._book = book
        self._own.adopt(book.of_agent())
        for name, judge in self._servers.items():
            judge.adopt(book.of_server(self._profiles[name]))

    def end(self) -> None:
        """At the end of the watcher."""
        for judge in self._all():
            judge.end()

    def alerts(self) -> tuple[Alert, ...]:
        """All that is pending or firing, what fires first."""
        found = [alert for judge in self._all() for alert in judge.alerts()]
        return tuple(sorted(found, key=lambda one: (one.state.value, one.active_at)))

    def rules(self) -> list[Mapping[str, Any]]:
        """Every rule of every target, with ``server`` (null for the agent's own series)."""
        return [
            {"server": judge.server or None, **msgspec.to_builtins(status)}
            for judge in self._all()
            for status in judge.statuses()
        ]

    @property
    def problem(self) -> str | None:
        """What is wrong with the operator's rules."""
        return self._book.problem

    def _all(self) -> Iterator[TargetJudge]:
        yield from self._servers.values()
        yield self._own


def instance(url: str) -> str:
    """``host:port`` as a scrape has it, without what a URL may hide in front of it; empty for a unix socket."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
