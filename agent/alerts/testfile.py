"""Unit tests of rules as promtool reads them: a test file in, its cases with their lines out.

As strict as promtool: an unknown key, a missing ``alertname``, a value that cannot be read are said with file and
line, the first of them as ConfigError. Never here: evaluation (``testing``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from agent.alerts.duration import parse_duration
from agent.alerts.notation import NotationError, Point, read_series, read_values
from agent.alerts.problem import nearest
from agent.config import Document, Keys, Plain, read_texts
from agent.errors import ConfigError
from agent.series.data import Labels

_FILE_KEYS = ("rule_files", "evaluation_interval", "group_eval_order", "tests", "fuzzy_compare")
_GROUP_KEYS = (
    *("name", "interval", "input_series", "alert_rule_test", "promql_expr_test"),
    *("external_labels", "external_url"),
)
_MINUTE_MS = 60_000

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedAlert:
    """A firing alert without its ``alertname``."""

    labels: dict[str, str]
    annotations: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlertCase:
    """The firing alerts of one name at one time."""

    where: str
    alertname: str
    eval_ms: int
    expected: tuple[ExpectedAlert, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExprCase:
    """The samples of an expression at one time."""

    where: str
    expr: str
    eval_ms: int
    expected: tuple[tuple[Labels, float], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestGroup:
    """One item of ``tests``: series from time zero on, and what must come of them."""

    __test__ = False  # pytest takes a class of this name for one of its own

    name: str
    where: str
    interval_ms: int
    series: tuple[tuple[Labels, Sequence[Point]], ...]
    alerts: tuple[AlertCase, ...]
    expressions: tuple[ExprCase, ...]

    @property
    def last_ms(self) -> int:
        """The last time that a case asks for."""
        times = [case.eval_ms for case in self.alerts] + [case.eval_ms for case in self.expressions]
        return max(times, default=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestFile:
    """One file. ``order``: groups by name in the order of their evaluation; those not in it come first."""

    __test__ = False

    path: Path
    rule_files: tuple[Path, ...]
    evaluation_ms: int
    order: tuple[str, ...]
    fuzzy: bool
    groups: tuple[TestGroup, ...]


def read_test_file(path: Path) -> TestFile:
    """Raises ConfigError with file, line and remedy."""
    return _Reader(read_texts(path), path).file()


class _Reader:
    """Reads one document; every method raises at the first thing that does not hold."""

    def __init__(self, document: Document, path: Path) -> None:
        self._document = document
        self._path = path

    def _error(self, path: Keys, message: str, remedy: str) -> ConfigError:
        return ConfigError(message, where=self._document.where(path), remedy=remedy)

    def file(self) -> TestFile:
        top = self._document.value
        self._known((), top, _FILE_KEYS)
        evaluation_ms = self._duration((), top, "evaluation_interval") or _MINUTE_MS
        order = tuple(self._texts((), top, "group_eval_order"))
        for index, name in enumerate(order):
            if name in order[:index]:
                raise self._error(("group_eval_order", index), f"the group `{name}` stands twice", "name it once")
        return TestFile(
            path=self._path,
            rule_files=tuple(self._rule_files(top)),
            evaluation_ms=evaluation_ms,
            order=order,
            fuzzy=self._text((), top, "fuzzy_compare") == "true",
            groups=tuple(self._group(at, group, evaluation_ms) for at, group in self._items((), top, "tests")),
        )

    def _rule_files(self, top: dict[str, Plain]) -> Iterator[Path]:
        """Paths and patterns, relative to the test file."""
        for index, name in enumerate(self._texts((), top, "rule_files")):
            at = ("rule_files", index)
            base, pattern = (Path(name).anchor, name[1:]) if name.startswith("/") else (self._path.parent, name)
            if not re.search(r"[*?\[]", name):
                yield Path(base) / pattern
                continue
            found = sorted(Path(base).glob(pattern))
            if not found:
                raise self._error(at, f"no rule file is named `{name}`", "correct the pattern")
            yield from found

    def _group(self, at: Keys, group: dict[str, Plain], evaluation_ms: int) -> TestGroup:
        self._known(at, group, _GROUP_KEYS)
        self._pairs(at, group, "external_labels")
        return TestGroup(
            name=self._text(at, group, "name"),
            where=self._document.where(at),
            interval_ms=self._duration(at, group, "interval") or evaluation_ms,
            series=tuple(self._series(inner, one) for inner, one in self._items(at, group, "input_series")),
            alerts=tuple(self._alerts(inner, one) for inner, one in self._items(at, group, "alert_rule_test")),
            expressions=tuple(self._expr(inner, one) for inner, one in self._items(at, group, "promql_expr_test")),
        )

    def _series(self, at: Keys, one: dict[str, Plain]) -> tuple[Labels, Sequence[Point]]:
        self._known(at, one, ("series", "values"))
        return self._labels(at, one, "series"), self._noted((*at, "values"), read_values, self._text(at, one, "values"))

    def _alerts(self, at: Keys, one: dict[str, Plain]) -> AlertCase:
        self._known(at, one, ("eval_time", "alertname", "exp_alerts"))
        name = self._text(at, one, "alertname")
        if not name:
            raise self._error(
                at, "a case without `alertname`", "name the alert that is expected, or expected not to be"
            )
        expected = []
        for inner, alert in self._items(at, one, "exp_alerts"):
            self._known(inner, alert, ("exp_labels", "exp_annotations"))
            labels, annotations = (self._pairs(inner, alert, key) for key in ("exp_labels", "exp_annotations"))
            expected.append(ExpectedAlert(labels=labels, annotations=annotations))
        return AlertCase(
            where=self._document.where(at),
            alertname=name,
            eval_ms=self._duration(at, one, "eval_time"),
            expected=tuple(expected),
        )

    def _expr(self, at: Keys, one: dict[str, Plain]) -> ExprCase:
        self._known(at, one, ("expr", "eval_time", "exp_samples"))
        expected = []
        for inner, sample in self._items(at, one, "exp_samples"):
            self._known(inner, sample, ("labels", "value"))
            labels = self._labels(inner, sample, "labels") if "labels" in sample else ()
            expected.append((labels, self._number(inner, sample)))
        return ExprCase(
            where=self._document.where(at),
            expr=self._text(at, one, "expr"),
            eval_ms=self._duration(at, one, "eval_time"),
            expected=tuple(expected),
        )

    # -- values -------------------------------------------------------------------------------------------

    def _known(self, at: Keys, value: dict[str, Plain], known: Collection[str]) -> None:
        for key in value:
            if key not in known:
                raise self._error(
                    (*at, key), f"unknown key `{key}`{nearest(key, known)}", f"known here are {', '.join(known)}"
                )

    def _items(self, at: Keys, value: dict[str, Plain], key: str) -> Iterator[tuple[Keys, dict[str, Plain]]]:
        inner = value.get(key) or []
        if not isinstance(inner, list):
            raise self._error((*at, key), f"`{key}` is a list", "write `- ` before each item")
        for index, item in enumerate(inner):
            if not isinstance(item, dict):
                raise self._error((*at, key, index), f"an item of `{key}` is a mapping", "write `key: value` lines")
            yield (*at, key, index), item

    def _texts(self, at: Keys, value: dict[str, Plain], key: str) -> list[str]:
        inner = value.get(key) or []
        if not isinstance(inner, list) or not all(isinstance(item, str) for item in inner):
            raise self._error((*at, key), f"`{key}` is a list of texts", "write `- ` before each")
        return [item for item in inner if isinstance(item, str)]

    def _text(self, at: Keys, value: dict[str, Plain], key: str) -> str:
        inner = value.get(key)
        if inner is not None and not isinstance(inner, str):
            raise self._error((*at, key), f"`{key}` is a text", "put it in quotes")
        return inner or ""

    def _pairs(self, at: Keys, value: dict[str, Plain], key: str) -> dict[str, str]:
        inner = value.get(key) or {}
        if not isinstance(inner, dict):
            raise self._error((*at, key), f"`{key}` is a mapping", "write `name: value` lines")
        pairs = {}
        for name, item in inner.items():
            if item is not None and not isinstance(item, str):
                raise self._error((*at, key, name), f"the value of `{name}` is a text", "put it in quotes")
            pairs[name] = item or ""
        return pairs

    def _duration(self, at: Keys, value: dict[str, Plain], key: str) -> int:
        text = self._text(at, value, key)
        try:
            return parse_duration(text) if text else 0
        except ValueError as error:
            raise self._error((*at, key), f"`{key}`: {error}", "write it as 90s, 5m or 1h30m") from None

    def _labels(self, at: Keys, value: dict[str, Plain], key: str) -> Labels:
        return self._noted((*at, key), read_series, self._text(at, value, key))

    def _number(self, at: Keys, value: dict[str, Plain]) -> float:
        text = self._text(at, value, "value") or "0"
        try:
            return float(
                text.replace(".inf", "inf").replace(".Inf", "inf").replace(".nan", "nan").replace(".NaN", "nan")
            )
        except ValueError:
            raise self._error((*at, "value"), f"`{text}` is no number", "write a number, .inf or .nan") from None

    def _noted(self, at: Keys, read: Callable[[str], T], text: str) -> T:
        try:
            return read(text)
        except NotationError as error:
            raise self._error(at, str(error), "correct it; the notation is that of promtool test rules") from None
