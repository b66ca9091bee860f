"""Rule files: Prometheus' format in, raw groups and rules with their lines out.

As strict as ``promtool check rules``, and a little stricter where a file would load in Prometheus 3 alone (metric and
label names outside ``[a-zA-Z_:]``). All problems of a file are collected. Never here: what an expression or a template
means (``compile``), what rules mean together (``lint``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from agent.alerts.duration import parse_duration
from agent.alerts.problem import Problem, nearest
from agent.config import Document, Keys, Plain, read_texts
from agent.errors import ConfigError

_GROUP_KEYS = ("name", "interval", "query_offset", "limit", "labels", "rules")
_RULE_KEYS = ("record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_UNREADABLE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawRule:
    """A rule as written; ``lines`` gives ``file:line`` of one of its keys."""

    name: str
    record: bool
    expr: str
    where: str
    lines: Callable[..., str]
    labels: dict[str, str]
    annotations: dict[str, str]
    for_ms: int = 0
    keep_firing_ms: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawGroup:
    """A group as written. ``labels`` are those of the group alone."""

    name: str
    file: str
    where: str
    rules: tuple[RawRule, ...]
    labels: dict[str, str]
    interval_ms: int | None = None
    query_offset_ms: int = 0
    limit: int = 0


def read_rule_file(path: Path) -> tuple[list[RawGroup], list[Problem]]:
    """The groups of a file, and everything that is wrong with it; never raises."""
    try:
        document = read_texts(path)
    except ConfigError as error:
        problem = Problem(
            where=error.where or str(path), message=error.message, remedy=error.remedy or "correct the file"
        )
        return [], [problem]
    return read_rule_document(document)


def read_rule_document(document: Document) -> tuple[list[RawGroup], list[Problem]]:
    """As :func:`read_rule_file`, from what was read already."""
    reader = _Reader(document)
    return reader.groups(), reader.problems


class _Reader:
    """Reads one document; every method notes problems and goes on."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []

    def _note(self, path: Keys, message: str, remedy: str, rule: str = "") -> None:
        where = self._document.where(path)
        self.problems.append(Problem(where=where, message=message, remedy=remedy, rule=rule))

    def groups(self) -> list[RawGroup]:
        self._known((), self._document.value, ("groups",), "")
        groups, seen = [], set()
        for path, value in self._items((), self._document.value, "groups", ""):
            group = self._group(path, value)
            if group is None:
                continue
            if group.name in seen:
                self._note(path, f"the group `{group.name}` stands twice in this file", "give one another name")
            seen.add(group.name)
            groups.append(group)
        return groups

    def _group(self, path: Keys, value: Plain) -> RawGroup | None:
        if not isinstance(value, dict):
            self._note(path, "a group is a mapping", "write `- name: …`")
            return None
        self._known(path, value, _GROUP_KEYS, "")
        name = self._text(path, value, "name", "")
        if not name:
            self._note(path, "a group without a name", "give it a `name`")
        rules = (self._rule(at, rule) for at, rule in self._items(path, value, "rules", ""))
        interval = self._duration(path, value, "interval", "")
        return RawGroup(
            name=name,
            file=self._document.name,
            where=self._document.where(path),
            rules=tuple(rule for rule in rules if rule is not None),
            labels=self._pairs(path, value, "labels", ""),
            interval_ms=interval or None,
            query_offset_ms=self._duration(path, value, "query_offset", ""),
            limit=self._limit(path, value),
        )

    def _rule(self, path: Keys, value: Plain) -> RawRule | None:
        if not isinstance(value, dict):
            self._note(path, "a rule is a mapping", "write `- alert: …` or `- record: …`")
            return None
        alert = self._text(path, value, "alert", "")
        record = self._text(path, value, "record", "")
        name = record or alert
        self._known(path, value, _RULE_KEYS, name)
        if bool(alert) == bool(record):
            what = "both `record` and `alert`" if alert else "neither `record` nor `alert`"
            self._note(path, f"a rule with {what}", "give it one of the two", name)
        expr = self._text(path, value, "expr", name)
        if not expr.strip():
            self._note((*path, "expr"), "a rule without an expression", "give it an `expr`", name)
        rule = RawRule(
            name=name,
            record=bool(record),
            expr=expr,
            where=self._document.where(path),
            lines=lambda *keys: self._document.where((*path, *keys)),
            labels=self._pairs(path, value, "labels", name),
            annotations=self._pairs(path, value, "annotations", name),
            for_ms=self._duration(path, value, "for", name),
            keep_firing_ms=self._duration(path, value, "keep_firing_for", name),
        )
        self._check(path, value, rule)
        return rule if name and expr.strip() and bool(alert) != bool(record) else None

    def _check(self, path: Keys, value: dict[str, Plain], rule: RawRule) -> None:
        if not rule.record:
            return
        if not _METRIC.fullmatch(rule.name):
            self._note(
                (*path, "record"),
                f"`{rule.name}` is no name of a metric",
                "use letters, digits, `_` and `:`; an expression belongs into `expr`",
                rule.name,
            )
        for key in ("for", "keep_firing_for", "annotations"):
            if value.get(key) and (key == "annotations" or self._duration(path, value, key, rule.name, quiet=True)):
                self._note((*path, key), f"a recording rule has no `{key}`", f"remove `{key}`", rule.name)

    def _known(self, path: Keys, value: dict[str, Plain], known: Collection[str], rule: str) -> None:
        for key in value:
            if key not in known:
                remedy = f"correct or remove it; known here are {', '.join(known)}"
                self._note((*path, key), f"unknown key `{key}`{nearest(key, known)}", remedy, rule)

    def _items(self, path: Keys, value: dict[str, Plain], key: str, rule: str) -> list[tuple[Keys, Plain]]:
        inner = value.get(key)
        if inner is None:
            return []
        if not isinstance(inner, list):
            self._note((*path, key), f"`{key}` is a list", "write `- ` before each item", rule)
            return []
        return [((*path, key, index), item) for index, item in enumerate(inner)]

    def _text(self, path: Keys, value: dict[str, Plain], key: str, rule: str) -> str:
        inner = value.get(key)
        if inner is None:
            return ""
        if not isinstance(inner, str):
            self._note((*path, key), f"`{key}` is a text", "put it in quotes", rule)
            return ""
        return inner

    def _duration(self, path: Keys, value: dict[str, Plain], key: str, rule: str, *, quiet: bool = False) -> int:
        text = self._text(path, value, key, rule) if not quiet else value.get(key)
        if value.get(key) is None or not isinstance(text, str):
            return 0
        try:
            return parse_duration(text)
        except ValueError as error:
            if not quiet:
                self._note((*path, key), f"`{key}`: {error}", "write it as 90s, 5m or 1h30m", rule)
            return 0

    def _limit(self, path: Keys, value: dict[str, Plain]) -> int:
        text = self._text(path, value, "limit", "")
        if not text:
            return 0
        if not re.fullmatch(r"\d{1,9}", text):
            self._note((*path, "limit"), f"`limit` is a whole number from 0, not `{text}`", "0 means no limit")
            return 0
        return int(text)

    def _pairs(self, path: Keys, value: dict[str, Plain], key: str, rule: str) -> dict[str, str]:
        inner = value.get(key)
        if inner is None:
            return {}
        if not isinstance(inner, dict):
            self._note((*path, key), f"`{key}` is a mapping", "write `name: value` lines", rule)
            return {}
        pairs: dict[str, str] = {}
        for name, item in inner.items():
            at = (*path, key, name)
            if not _LABEL.fullmatch(name) or (name == "__name__" and key == "labels"):
                self._note(at, f"`{name}` is no name for one of the {key}", "use letters, digits and `_`", rule)
            text = "" if item is None else item
            if not isinstance(text, str) or _UNREADABLE.search(text):
                self._note(at, f"the value of `{name}` is a text", "put it in quotes", rule)
                continue
            pairs[name] = text
        return pairs
