"""What must hold among rules: one target per expression, one profile per target, names that exist, windows that fit.

In: groups whose rules hold each for itself. Out: the target of every rule, and problems. A name that a rule records is
followed to what it is recorded from, through any number of rules. ``vllm_agent_threshold`` belongs to no target by
itself: it is recorded from the series that it judges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from agent.alerts.expression import Selector
from agent.alerts.problem import Problem, nearest
from agent.alerts.rule import THRESHOLD, Group, Rule, Target, recorded
from agent.series.data import NAME

SEVERITIES = ("critical", "warning", "info")
LONG_WINDOW_MS = 6 * 3_600_000
LONG_INTERVAL_MS = 60_000
_PREFIX = "vllm_agent_"
_OWN = frozenset((THRESHOLD, "ALERTS", "ALERTS_FOR_STATE"))
_SUFFIXES = ("_bucket", "_sum", "_count")
_EXPORTER = {Target.SERVER: "the server", Target.AGENT: "the agent"}


class Lint:
    """One pass over all groups; ``metrics``: names of the agent's own series, None where they are not known."""

    def __init__(self, groups: Sequence[Group], metrics: Collection[str] | None) -> None:
        self._groups = groups
        self._rules = [rule for group in groups for rule in group.rules]
        self._recorded = recorded(self._rules)
        self._interval = {id(rule): group.interval_ms or 0 for group in groups for rule in group.rules}
        self._metrics = metrics
        self._origins: dict[int, dict[Target, str]] = {}
        self._targets: dict[int, Target] = {}
        self.problems: list[Problem] = []

    def run(self) -> tuple[Group, ...]:
        """The groups with the target of each rule set; ``problems`` is filled."""
        self._duplicates()
        for rule in self._rules:
            self._target(rule)
        self._profiles()
        for rule in self._rules:
            self._names(rule)
            self._windows(rule)
            self._thresholds(rule)
            if not rule.record:
                self._people(rule)
        return tuple(dataclasses.replace(group, rules=tuple(map(self._placed, group.rules))) for group in self._groups)

    def _placed(self, rule: Rule) -> Rule:
        return dataclasses.replace(rule, target=self._targets[id(rule)])

    def _note(self, rule: Rule, message: str, remedy: str) -> None:
        self.problems.append(Problem(where=rule.where, message=message, remedy=remedy, rule=rule.name))

    def _warn(self, rule: Rule, message: str, remedy: str) -> None:
        self.problems.append(Problem(where=rule.where, message=message, remedy=remedy, rule=rule.name, level="warning"))

    def _duplicates(self) -> None:
        seen: dict[tuple[object, ...], Rule] = {}
        for rule in self._rules:
            labels = tuple(sorted((name, template.text) for name, template in rule.labels.items()))
            first = seen.setdefault((rule.record, rule.name, labels), rule)
            if first is not rule:
                self._note(
                    rule,
                    f"the same rule with the same labels stands at {first.where}",
                    "remove one, or tell them apart",
                )

    # Targets

    def _target(self, rule: Rule) -> None:
        origins = self._origin(rule, frozenset())
        if len(origins) > 1:
            both = " with ".join(f"{what} (exported by {_EXPORTER[target]})" for target, what in origins.items())
            self._note(rule, f"joins {both}", "keep one target per expression: let the agent export what is joined")
        self._targets[id(rule)] = next(iter(origins), Target.SERVER) if origins else self._by_threshold(rule)

    def _origin(self, rule: Rule, below: frozenset[int]) -> dict[Target, str]:
        """Whose series a rule reads, each with an example; ``below``: rules that are being followed already."""
        known = self._origins.get(id(rule))
        if known is not None:
            return known
        found: dict[Target, str] = {}
        for selector in rule.expression.selectors:
            for target, what in self._of(selector, below | {id(rule)}).items():
                found.setdefault(target, what)
        if not below:
            self._origins[id(rule)] = found
        return found

    def _of(self, selector: Selector, below: frozenset[int]) -> dict[Target, str]:
        name = selector.name
        if name is None:
            return self._nameless(selector)
        if name in _OWN:
            return {}
        makers = [rule for rule in self._recorded.get(name, ()) if id(rule) not in below]
        if not makers and name in self._recorded:
            return {}
        if not makers:
            return {Target.AGENT if name.startswith(_PREFIX) else Target.SERVER: f"`{name}`"}
        found: dict[Target, str] = {}
        for rule in makers:
            for target, what in self._origin(rule, below).items():
                found.setdefault(target, f"`{name}`, recorded from {what}")
        return found

    def _nameless(self, selector: Selector) -> dict[Target, str]:
        """A selector that chooses names by a pattern: the agent's where it takes one of those, else the server's."""
        text = ", ".join(f"{m.name}{m.match.value}{m.value!r}" for m in selector.matchers)
        if not any(matcher.name == NAME for matcher in selector.matchers):
            return dict.fromkeys(Target, f"`{{{text}}}`, which has no name,")
        own = any(selector.takes(NAME, name) for name in (*(self._metrics or ()), f"{_PREFIX}any"))
        return {Target.AGENT if own else Target.SERVER: f"`{{{text}}}`"}

    def _by_threshold(self, rule: Rule) -> Target:
        """A rule that reads nothing but thresholds judges where they are recorded."""
        for selector in rule.expression.selectors:
            for maker in self._recorded.get(THRESHOLD, ()):
                if selector.name == THRESHOLD and _meets(selector, maker) and maker is not rule:
                    return next(iter(self._origin(maker, frozenset((id(rule),)))), Target.SERVER)
        return Target.SERVER

    # Thresholds and profiles

    def _profiles(self) -> None:
        first: dict[Target, Rule] = {}
        for rule in self._recorded.get(THRESHOLD, ()):
            missing = [label for label in ("name", "profile") if not _label(rule, label)]
            if missing:
                self._note(rule, f"a threshold without the label `{missing[0]}`", "give it `name` and `profile`")
                continue
            other = first.setdefault(self._targets[id(rule)], rule)
            if _label(other, "profile") != _label(rule, "profile"):
                self._note(
                    rule,
                    f"a second profile `{_label(rule, 'profile')}` for the target that `{_label(other, 'profile')}` "
                    f"({other.where}) judges already",
                    "load exactly one profile",
                )

    def _thresholds(self, rule: Rule) -> None:
        makers = self._recorded.get(THRESHOLD, [])
        for selector in rule.expression.selectors:
            if selector.name != THRESHOLD or any(self._fits(selector, rule, maker) for maker in makers):
                continue
            wanted = selector.fixed("name") or "of any name"
            names = {_label(maker, "name") for maker in makers}
            if not makers:
                self._note(rule, f"compares with the threshold `{wanted}`, and no profile is loaded", "name a profile")
            elif any(_meets(selector, maker) for maker in makers):
                self._note(
                    rule,
                    f"compares with the threshold `{wanted}`, which is recorded from series of the other target",
                    "record it from the series that this rule judges",
                )
            else:
                self._note(
                    rule,
                    f"compares with the threshold `{wanted}`, which the profile does not record"
                    f"{nearest(wanted, names)}",
                    "record it in the profile, or correct its name",
                )

    def _fits(self, selector: Selector, rule: Rule, maker: Rule) -> bool:
        return _meets(selector, maker) and self._targets[id(maker)] is self._targets[id(rule)]

    # Names, windows, people

    def _names(self, rule: Rule) -> None:
        if rule.expression.moment:
            self._note(rule, "reads at a fixed time (`@ <time>`), which no store keeps", "use `offset`")
        for selector in rule.expression.selectors:
            name = selector.name
            if self._metrics is None or name is None or not name.startswith(_PREFIX):
                continue
            if name in _OWN or name in self._recorded or _family(name, self._metrics) is not None:
                continue
            self._note(
                rule,
                f"`{name}` is no metric of the agent{nearest(name, self._metrics)}",
                "correct the name; agent/metrics.yaml lists all",
            )

    def _windows(self, rule: Rule) -> None:
        for selector in rule.expression.selectors:
            if selector.reach_ms <= LONG_WINDOW_MS:
                continue
            makers = self._recorded.get(selector.name or "", [])
            if not makers or any(self._interval[id(maker)] < LONG_INTERVAL_MS for maker in makers):
                name = selector.name or "a selector"
                self._note(
                    rule,
                    f"reads `{name}` further back than 6h",
                    "record it in a group with `interval: 60s` or more, and read the recording",
                )

    def _people(self, rule: Rule) -> None:
        if rule.severity not in SEVERITIES:
            remedy = f"label it `severity: {' | '.join(SEVERITIES)}`"
            said = f"the severity `{rule.severity}` is not known" if rule.severity else "an alert without a severity"
            self._warn(rule, said, remedy)
        for name in ("summary", "runbook_url"):
            if name not in rule.annotations or not rule.annotations[name].text.strip():
                self._warn(rule, f"an alert without the annotation `{name}`", f"add `{name}`")


def _label(rule: Rule, name: str) -> str:
    return rule.labels[name].text if name in rule.labels else ""


def _meets(selector: Selector, maker: Rule) -> bool:
    return all(selector.takes(label, _label(maker, label)) for label in ("name", "profile"))


def _family(name: str, metrics: Collection[str]) -> str | None:
    """The metric that a sample's name belongs to."""
    return next((one for one in _stems(name) if one in metrics), None)


def _stems(name: str) -> Iterator[str]:
    yield name
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            yield name.removesuffix(suffix)
