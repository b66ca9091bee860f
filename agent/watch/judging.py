"""One target under its rules: the store of its series, the judge on it, and what both keep across a restart.

In: scrapes of a server, or the agent's own samples, at the moment they come. Out: changed alerts through ``tell``,
the rules' states and costs as metrics, alerts and rule states for the API. It stops nothing: whatever breaks in here
is said once and the watch goes on without rules.

Kept across restarts: alerts in the journal (after every change, and every ten seconds while any is active, so that a
``for`` goes on where it stood), series in a file of the state directory (every minute and at the end).
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from agent.alerts import RUNBOOK_BASE, Contract, Judge, RuleSet, RuleStatus
from agent.errors import AgentError
from agent.journal import Journal
from agent.model import Alert, Clock, Sample
from agent.series import (
    OWN_PREFIX,
    Image,
    Labels,
    Store,
    Taken,
    capture_snapshot,
    labels_of,
    restore_snapshot,
    write_snapshot,
)
from agent.serve import AgentMetrics

KEEP_SECONDS = 10.0
STATES_SECONDS = 10.0
SNAPSHOT_SECONDS = 60.0
FOLDER = "series"
_NUMBER = re.compile(r"[0-9]+")
ALERTS, UNKNOWN = f"{OWN_PREFIX}alerts", f"{OWN_PREFIX}rule_unknown"


@dataclass(frozen=True, kw_only=True)
class JudgeWorld:
    """What all judged targets share. ``say`` writes a line for people.

    ``tell`` (news) and ``remind`` (what was told in an earlier life, for receivers that are pushed the whole state)
    must neither block nor raise.

    ``trouble(what, error, meanwhile)`` says a failure once and its end once.
    """

    clock: Clock
    journal: Journal
    metrics: AgentMetrics
    say: Callable[[str], None]
    trouble: Callable[[str, str | None, str], None]
    tell: Callable[[Alert], None]
    remind: Callable[[Alert], None]
    runbook_base: Callable[[], str | None]


class TargetJudge:
    """``server`` names the watched server, empty for the agent's own series; ``target``: ``job`` and ``instance``."""

    def __init__(
        self, rules: RuleSet, world: JudgeWorld, *, server: str, target: Mapping[str, str], contract: Contract | None
    ) -> None:
        self.server = server
        self._world = world
        self._target = dict(target)
        self._store = Store(rules.selection(), target=target if server else None)
        self._judge = Judge(rules, self._store, server=server or "agent", contract=contract)
        self._labels: dict[tuple[str, tuple[str, ...]], Labels] = {}
        self._path = world.journal.state_dir / FOLDER / f"{server or '_agent'}.series"
        self._kept_at = self._shown_at = self._saved_at = -1e9
        self._active = False
        self._writing = threading.Lock()
        self._written_ms = 0
        self._trouble: str | None = None

    # -- across restarts ----------------------------------------------------------------------------------

    def restore(self) -> None:
        """Take up what the last life of the watcher left; before the first sample."""
        restored = restore_snapshot(self._path, self._store, now_ms=self._now_ms())
        if restored.notice is not None:
            self._world.say(restored.notice)
        dumped = self._world.journal.kv_get(self._key)
        if dumped is None:
            return
        try:
            self._judge.restore(msgspec.json.decode(dumped))
        except (AgentError, msgspec.DecodeError) as error:
            self._world.say(f"the alerts of the last run cannot be read and begin anew: {error}")
        self._active = bool(self._judge.alerts())
        for alert in (*self._judge.alerts(), *self._judge.resolved()):
            self._world.remind(self._told(alert))

    def adopt(self, rules: RuleSet) -> None:
        """Other rules from now on; alerts of rules that stay go on as they are."""
        dumped, contract = self._judge.dump(), self._judge.contract
        self._store.adopt(rules.selection())
        self._judge = Judge(rules, self._store, server=self.server or "agent", contract=contract)
        self._judge.restore(dumped, continued=True)

    def end(self) -> None:
        """At the end of the watcher: everything is kept."""
        self._keep()
        self._say_saved(self._write(capture_snapshot(self._store, now_ms=self._now_ms())))

    async def save(self) -> None:
        """The series to their file, once a minute; packed and written in a thread."""
        now = self._world.clock.monotonic()
        if now - self._saved_at >= SNAPSHOT_SECONDS:
            self._saved_at = now
            image = capture_snapshot(self._store, now_ms=self._now_ms())
            self._say_saved(await asyncio.to_thread(self._write, image))

    # -- what comes ---------------------------------------------------------------------------------------

    def see_contract(self, contract: Contract) -> None:
        """What this version of the server exports."""
        self._judge.contract = contract

    def scraped(self, body: bytes, content_type: str, *, at_ms: int, seconds: float) -> None:
        """One answer of ``/metrics``."""
        self._guarded(lambda: self._took(self._store.scraped(body, content_type, at_ms=at_ms, seconds=seconds)))

    def failed(self, seconds: float = 0.0) -> None:
        """No answer: ``up`` is 0."""
        self._guarded(lambda: self._took(self._store.failed(at_ms=self._now_ms(), seconds=seconds)))

    def gone(self) -> None:
        """Nobody wants the server to answer: it was stopped on request. Its series end; that it is down is no news."""

        def work() -> None:
            at_ms = self._now_ms()
            self._store.gone(at_ms=at_ms)
            self._evaluate(at_ms)

        self._guarded(work)

    def own(self, samples: Iterable[Sample]) -> None:
        """The agent's own samples of now, with the labels that a scrape of the agent would give them."""

        def work() -> None:
            at_ms = self._now_ms()
            self._store.record("own", [(self._stamped(one), one.value) for one in samples], at_ms=at_ms)
            self._evaluate(at_ms)

        self._guarded(work)

    def _stamped(self, sample: Sample) -> Labels:
        key = (sample.name, tuple(sample.labels.values()))
        labels = self._labels.get(key)
        if labels is None:
            labels = self._labels[key] = labels_of({**sample.labels, **self._target, "__name__": sample.name})
        return labels

    def _took(self, taken: Taken) -> None:
        if _without_numbers(taken.trouble) != _without_numbers(self._trouble):
            self._trouble = taken.trouble  # the same with other numbers is no news
        self._world.trouble(f"{self.server}: /metrics", self._trouble, "what could be read is judged")
        self._evaluate(taken.at_ms)

    def _guarded(self, work: Callable[[], None]) -> None:
        """A defect of the judging ends no watch."""
        problem = None
        try:
            work()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self._world.trouble(f"{self.server or 'agent'}: the judging of rules", problem, "the watch goes on without")

    # -- what is judged -----------------------------------------------------------------------------------

    def _evaluate(self, at_ms: int) -> None:
        began = time.perf_counter()
        changes = self._judge.evaluate(at_ms)
        self._world.metrics.evaluated(self.server, time.perf_counter() - began)
        now = self._world.clock.monotonic()
        if changes or (self._active and now - self._kept_at >= KEEP_SECONDS):
            self._keep()
        if changes or now - self._shown_at >= STATES_SECONDS:
            self._show(now, counted=bool(changes))
        for alert in changes:
            self._world.tell(self._told(alert))

    def _keep(self) -> None:
        self._kept_at = self._world.clock.monotonic()
        self._world.journal.kv_set(self._key, msgspec.json.encode(self._judge.dump()).decode())

    def _show(self, now: float, *, counted: bool) -> None:
        """How many alerts there are after every change; which rules say nothing now and then, since that costs 1 ms."""
        metrics, name = self._world.metrics, self.server or "agent"
        due = now - self._shown_at >= STATES_SECONDS
        if counted or (due and (self._active or self._shown_at < 0)):  # what only waited ends without a change
            alerts = self._judge.alerts()
            self._active = bool(alerts)
            metrics.bring(f"alerts/{name}", _counts(map(self._told, alerts)))
        if due:
            self._shown_at = now
            unknown = ((one.rule, one.unknown_kind) for one in self._judge.statuses() if one.kind == "alert")
            rows = [
                Sample(UNKNOWN, {"server": name, "rule": rule, "reason": kind}, 1.0) for rule, kind in unknown if kind
            ]
            metrics.bring(f"rules/{name}", rows)

    def _told(self, alert: Alert) -> Alert:
        """The alert as people get it: with a runbook that leads somewhere or none, under the server it is about."""
        texts = dict(alert.annotations)
        link, base = texts.get("runbook_url", ""), self._world.runbook_base()
        if link.startswith(RUNBOOK_BASE):
            del texts["runbook_url"]
            if base is not None:
                texts["runbook_url"] = f"{base.rstrip('/')}/{link.removeprefix(RUNBOOK_BASE)}"
        about = self.server or alert.labels.get("server") or alert.server
        return msgspec.structs.replace(alert, server=about, annotations=texts, runbook=texts.get("runbook_url") or None)

    # -- what people ask ----------------------------------------------------------------------------------

    def alerts(self) -> tuple[Alert, ...]:
        """All that is pending or firing."""
        return tuple(map(self._told, self._judge.alerts()))

    def statuses(self) -> tuple[RuleStatus, ...]:
        """Every rule as of its last evaluation."""
        return self._judge.statuses()

    @property
    def _key(self) -> str:
        return f"watch/alerts/{self.server}"

    def _write(self, image: Image) -> str | None:
        """Blocks. One at a time, and none over a newer one: the last round may still write when the watcher ends."""
        with self._writing:
            if image.saved_at_ms < self._written_ms:
                return None
            try:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                return f"{self._path.parent}: {error.strerror}; a restart begins with empty windows"
            self._written_ms = image.saved_at_ms
            return write_snapshot(self._path, image)

    def _say_saved(self, notice: str | None) -> None:
        self._world.trouble(f"{self.server or 'agent'}: the keeping of series", notice, "they stay in memory")

    def _now_ms(self) -> int:
        return round(self._world.clock.now().timestamp() * 1000)


def _without_numbers(text: str | None) -> str | None:
    return None if text is None else _NUMBER.sub("", text)


def _counts(alerts: Iterable[Alert]) -> list[Sample]:
    counts: dict[tuple[str, str, str], int] = {}
    for alert in alerts:
        key = (alert.server, alert.name, alert.state.value)
        counts[key] = counts.get(key, 0) + 1
    return [
        Sample(ALERTS, {"server": server, "rule": rule, "state": state}, float(count))
        for (server, rule, state), count in counts.items()
    ]
