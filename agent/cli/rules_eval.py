"""``agent rules eval``: what an expression or a rule says of a server now, from scrapes taken for the purpose.

In: an expression or checked rules; a URL, or saved answers of ``/metrics``. Out: values, or for each rule its state,
its alerts, and what is unknown with the reason. A window is judged from two scrapes or more, so a rate over five
minutes is one over the seconds that were watched; ``for`` has not passed, so a condition that holds shows as pending.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from agent.alerts import ADHOC, Judge, RuleSet, RuleStatus, Target, expression_rules
from agent.collect import Scrape, VllmClient
from agent.collect import Target as Server
from agent.errors import AgentError, NotFoundError, UsageError
from agent.model import Alert, SystemClock
from agent.series import Need, Selection, Store
from agent.series.contract import contract_for
from agent.series.promql import compile_query

_TEXT = "text/plain; version=0.0.4"
_OWN = b"vllm_agent_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be evaluated and how often. One of ``expression`` and ``rules`` is there; ``rule`` chooses one."""

    expression: str | None
    rule: str | None
    rules: RuleSet | None
    seconds: float
    count: int | None
    watch: bool


def evaluate(asked: Asked, *, url: str | None, files: Sequence[Path], as_json: bool) -> int:
    """Prints the answer; 0, or 1 where no scrape brought anything."""
    try:
        return asyncio.run(_evaluate(asked, url, files, as_json))
    except KeyboardInterrupt:
        return 0


async def _evaluate(asked: Asked, url: str | None, files: Sequence[Path], as_json: bool) -> int:
    rules = _chosen(asked)
    scrapes = _of_url(url, asked, rules) if url is not None else _of_files(files, asked.seconds)
    view: _View | None = None
    async for scrape in scrapes:
        if view is None:
            view = _View(asked, rules, scrape, url or str(files[0]))
        view.take(scrape)
        if asked.watch:
            view.show(as_json)
    if view is None:
        raise AgentError("no scrape brought an answer", where=url, remedy="check the address; the server must be up")
    if not asked.watch:
        view.show(as_json)
    return 0


def _chosen(asked: Asked) -> RuleSet:
    if asked.expression is not None:
        return expression_rules(asked.expression)
    assert asked.rules is not None
    if asked.rule is None:
        return asked.rules
    wanted = [rule for rule in asked.rules.rules if rule.name == asked.rule]
    if not wanted:
        raise NotFoundError(f"there is no rule `{asked.rule}`", remedy="`agent rules list` names all")
    return asked.rules.for_target(wanted[0].target)


# -- scrapes ----------------------------------------------------------------------------------------------


async def _of_files(files: Sequence[Path], seconds: float) -> AsyncIterator[Scrape]:
    """Saved answers, as if they were taken one after the other with the last of them now."""
    now_ms = round(time.time() * 1000)
    for index, file in enumerate(files):
        try:
            body = file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror or error}", where=str(file), remedy="name a saved /metrics answer"
            ) from None
        at_ms = now_ms - round((len(files) - 1 - index) * seconds * 1000)
        yield Scrape(body=body, content_type=_TEXT, at=0.0, at_ms=at_ms, seconds=0.0)


async def _of_url(url: str, asked: Asked, rules: RuleSet) -> AsyncIterator[Scrape]:
    count = asked.count or (2 if _windows(asked, rules) else 1)
    taken = 0
    async with VllmClient(
        Server(url=url.removesuffix("/").removesuffix("/metrics")), SystemClock(), timeout=10
    ) as client:
        while asked.watch or taken < count:
            if taken:
                await asyncio.sleep(asked.seconds)
            taken += 1
            scrape = await client.scrape()
            if isinstance(scrape, Scrape):
                yield scrape
            else:
                click.echo(f"{url}: {scrape.reason}", err=True)


def _windows(asked: Asked, rules: RuleSet) -> bool:
    chosen = rules.rules if asked.rule is None else (rule for rule in rules.rules if rule.name == asked.rule)
    return any(selector.window_ms for rule in chosen for selector in rule.expression.selectors)


# -- the answer -------------------------------------------------------------------------------------------


class _View:
    """The rules of one target on a store of its own."""

    def __init__(self, asked: Asked, rules: RuleSet, first: Scrape, place: str) -> None:
        self._asked = asked
        target = Target.AGENT if first.body.startswith(_OWN) or b"\n" + _OWN in first.body else Target.SERVER
        self._rules = rules if asked.expression or asked.rule else rules.for_target(target)
        instance = urlsplit(place).netloc or Path(place).name
        selection = self._rules.selection()
        if asked.expression is not None:
            longest = max((need.window_ms for need in self._rules.needs()), default=0)
            selection = Selection([*self._rules.needs(), Need((), longest)])
        self._store = Store(selection, target={"job": "vllm", "instance": instance})
        self._judge = Judge(self._rules, self._store, server=instance, contract=contract_for(None))
        self._at_ms = 0

    def take(self, scrape: Scrape) -> None:
        """One more scrape, evaluated as it arrives."""
        taken = self._store.scraped(scrape.body, scrape.content_type, at_ms=scrape.at_ms, seconds=scrape.seconds)
        if taken.trouble:
            click.echo(f"notice: {taken.trouble}", err=True)
        self._at_ms = taken.at_ms
        self._judge.evaluate(taken.at_ms)

    def show(self, as_json: bool) -> None:
        """Print what is known now."""
        if self._asked.expression is not None:
            self._show_expression(as_json)
        else:
            self._show_rules(as_json)
        sys.stdout.flush()

    def _show_expression(self, as_json: bool) -> None:
        assert self._asked.expression is not None
        [status] = [one for one in self._judge.statuses() if one.rule == ADHOC]
        value = compile_query(self._asked.expression).instant(self._store, self._at_ms)
        samples: list[tuple[dict[str, str], float]] = [({}, value)] if isinstance(value, float) else []
        if isinstance(value, list):
            samples = [(dict(element.labels), element.value) for element in value]
        if as_json:
            rows = [{"labels": labels, "value": _plain(number)} for labels, number in samples]
            click.echo(json.dumps({"result": rows, "unknown": status.unknown, "error": status.error}))
            return
        for labels, number in samples:
            click.echo(f"{_labels(labels)} {number:g}")
        if not samples:
            click.echo(f"unknown: {status.unknown}" if status.unknown else status.error or "empty: nothing meets it")

    def _show_rules(self, as_json: bool) -> None:
        wanted = [one for one in self._judge.statuses() if self._asked.rule in (None, one.rule)]
        alerts = [one for one in self._judge.alerts() if self._asked.rule in (None, one.name)]
        if as_json:
            click.echo(json.dumps({"rules": [_row(one, alerts) for one in wanted]}))
            return
        shown = [one for one in wanted if one.kind == "alert" or self._asked.rule]
        for status in shown:
            click.echo(f"{status.rule}: {_state(status)}")
            for alert in alerts:
                if alert.name == status.rule:
                    click.echo(f"  {_labels(dict(alert.labels))} {alert.value:g}")
                    click.echo(f"  {alert.annotations.get('description') or alert.annotations.get('summary', '')}")


def _state(status: RuleStatus) -> str:
    if status.error:
        return f"failed: {status.error}"
    if status.unknown:
        return f"unknown: {status.unknown}"
    if status.kind == "record":
        return f"{status.series} series" + ("" if status.value is None else f", highest {status.value:g}")
    aside = f" (not judged: {'; '.join(status.not_judged)})" if status.not_judged else ""
    return status.state + aside


def _row(status: RuleStatus, alerts: Sequence[Alert]) -> dict[str, Any]:
    own = [one for one in alerts if one.name == status.rule]
    return {
        "rule": status.rule,
        "kind": status.kind,
        "severity": status.severity or None,
        "state": status.state,
        "unknown": status.unknown,
        "not_judged": list(status.not_judged),
        "error": status.error,
        "value": _plain(status.value),
        "alerts": [
            {"labels": dict(one.labels), "annotations": dict(one.annotations), "value": _plain(one.value)}
            for one in own
        ],
    }


def _plain(number: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    return number if number is None or abs(number) < float("inf") else str(number)


def _labels(labels: dict[str, str]) -> str:
    pairs = {name: text for name, text in labels.items() if name != "__name__"}
    inner = ", ".join(f"{name}={json.dumps(text)}" for name, text in sorted(pairs.items()))
    return f"{labels.get('__name__', '')}{{{inner}}}"
