"""The rows of ``agent rules list``: each rule with the thresholds that it is held to, profile by profile.

In: rule files, or nothing for the shipped ones. Out: plain rows for JSON, or a table. A threshold is the number that
its recording rule multiplies with one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.alerts import Rule, RuleSet

_NUMBER = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*\*")
Row = dict[str, Any]
Numbers = dict[str, dict[str, float]]


def listed(files: tuple[Path, ...]) -> list[Row]:
    """One row a rule but for the thresholds themselves, in the order of the files."""
    from agent.alerts import THRESHOLD, load_rules, profiles, read_rules

    own, _ = read_rules(files, profile=None)
    sets = {own.profile: own} if own.profile else {name: load_rules(files, profile=name) for name in profiles()}
    numbers = _numbers(sets.values())
    first = next(iter(sets.values()))
    return [_row(rule, numbers) for rule in first.rules if rule.name != THRESHOLD]


def _numbers(sets: Any) -> Numbers:
    """Threshold -> profile -> number."""
    from agent.alerts import THRESHOLD

    found: Numbers = {}
    rules: RuleSet
    for rules in sets:
        for rule in rules.rules:
            match = _NUMBER.match(rule.text)
            if rule.name == THRESHOLD and match is not None:
                found.setdefault(rule.labels["name"].text, {})[rule.labels["profile"].text] = float(match[1])
    return found


def _row(rule: Rule, numbers: Numbers) -> Row:
    from agent.alerts import THRESHOLD

    names = {one.fixed("name") for one in rule.expression.selectors if one.name == THRESHOLD}
    return {
        "rule": rule.name,
        "kind": "record" if rule.record else "alert",
        "group": rule.group,
        "where": rule.where,
        "target": rule.target.value,
        "severity": rule.severity or None,
        "for_seconds": rule.for_ms / 1000,
        "keep_firing_for_seconds": rule.keep_firing_ms / 1000,
        "thresholds": {name: numbers.get(name, {}) for name in sorted(name for name in names if name)},
        "summary": rule.annotations["summary"].text if "summary" in rule.annotations else None,
        "expr": rule.text,
    }


def table(rows: list[Row]) -> str:
    """Alerts in columns, the thresholds below each."""
    from agent.alerts import format_duration

    alerts = [row for row in rows if row["kind"] == "alert"]
    cells = [["RULE", "TARGET", "SEVERITY", "FOR", "SUMMARY"]]
    for row in alerts:
        length = format_duration(round(row["for_seconds"] * 1000))
        cells.append([row["rule"], row["target"], row["severity"] or "-", length, row["summary"] or "-"])
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = []
    for line, thresholds in zip(cells, [{}, *(row["thresholds"] for row in alerts)], strict=True):
        lines.append("  ".join([*(text.ljust(width) for text, width in zip(line[:4], widths, strict=True)), line[4]]))
        for name, numbers in thresholds.items():
            shown = ", ".join(f"{profile} {number:g}" for profile, number in numbers.items())
            lines.append(f"    {name}: {shown}")
    return "\n".join(lines)
