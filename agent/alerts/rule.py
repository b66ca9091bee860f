"""The words of this stage: rule, group, rule set, and what a query must be able to do.

A rule set is what files and a profile hold after every check: nothing in it needs the files any more. It is split by
target, since the series of the server and those of the agent live in stores of their own.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from agent.alerts.expression import Expression
from agent.alerts.template import Template
from agent.series import Labels, Match, Matcher, Need, Selection, Storage
from agent.series.data import NAME
from agent.series.promql import Query

THRESHOLD = "vllm_agent_threshold"
UP_KEPT_MS = 6 * 3_600_000
ALERT_SERIES = frozenset(("ALERTS", "ALERTS_FOR_STATE"))


class Target(str, enum.Enum):
    """Whose series a rule judges: what the server exports, or what the agent exports (``vllm_agent_*``)."""

    SERVER = "server"
    AGENT = "agent"


class Store(Storage, Protocol):
    """A store of one target's series that also takes what rules make."""

    def record(self, source: str, samples: Iterable[tuple[Labels, float]], *, at_ms: int) -> None:
        """All that one rule gives at this moment; what it gave before and gives no more ends."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A recording rule (``record``) or an alerting rule. Times in milliseconds; ``where`` is ``file:line``.

    ``labels`` hold those of the group too. ``target`` is the one whose store the rule is evaluated on.
    """

    name: str
    record: bool
    text: str
    where: str
    group: str
    query: Query
    expression: Expression
    labels: Mapping[str, Template]
    annotations: Mapping[str, Template] = dataclasses.field(default_factory=dict)
    for_ms: int = 0
    keep_firing_ms: int = 0
    target: Target = Target.SERVER

    @property
    def severity(self) -> str:
        """``critical``, ``warning``, ``info``, or empty where the rule does not say."""
        return self.labels["severity"].text if "severity" in self.labels else ""

    @property
    def key(self) -> str:
        """The same for the same rule of the same group after files were read anew, as Prometheus tells them apart."""
        labels = (f"{name}\1{template.text}" for name, template in sorted(self.labels.items()))
        return "\0".join((self.group, "record" if self.record else "alert", self.name, *labels))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Rules that are evaluated one after the other. ``interval_ms`` None: at every call. ``limit`` 0: none."""

    name: str
    file: str
    rules: tuple[Rule, ...]
    interval_ms: int | None = None
    limit: int = 0
    query_offset_ms: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleSet:
    """Checked rules. ``profile``: the name of the thresholds' profile, None where no threshold is recorded."""

    groups: tuple[Group, ...]
    profile: str | None = None

    @property
    def rules(self) -> Iterator[Rule]:
        """All rules in the order of files, groups and lines."""
        return (rule for group in self.groups for rule in group.rules)

    def for_target(self, target: Target | str) -> RuleSet:
        """The rules of one target; groups that have none are left out."""
        wanted = Target(target)
        groups = []
        for group in self.groups:
            rules = tuple(rule for rule in group.rules if rule.target is wanted)
            if rules:
                groups.append(dataclasses.replace(group, rules=rules))
        return dataclasses.replace(self, groups=tuple(groups))

    def selection(self) -> Selection:
        """What the store must keep for these rules, and ``up`` for as long as any of their windows."""
        needs = list(self.needs())
        longest = max((need.window_ms for need in needs if need.window_ms <= UP_KEPT_MS), default=0)
        needs.append(Need((Matcher(NAME, Match.EQUAL, "up"),), longest))
        return Selection(needs, recordings=self.recordings())

    def needs(self) -> Iterator[Need]:
        """The selectors of all expressions."""
        for group in self.groups:
            for rule in group.rules:
                yield from rule.expression.needs(group.query_offset_ms)

    def recordings(self) -> Mapping[str, int]:
        """Recorded names with the interval of their group (ms, 0: at every call); the longest where it is several."""
        found: dict[str, int] = {}
        for group in self.groups:
            for rule in group.rules:
                if rule.record:
                    found[rule.name] = max(found.get(rule.name, 0), group.interval_ms or 0)
        return found


def recorded(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Recording rules by the name they record."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.record:
            found.setdefault(rule.name, []).append(rule)
    return found
