"""The tables of docs/rules.md, made from the rules: ``python -m tests.rules.tables`` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from agent.alerts import THRESHOLD, Rule, format_duration, load_rules

PROFILES = ("guide-moe", "guide-high-throughput", "interactive", "batch")


def alert_rows() -> dict[str, list[list[str]]]:
    """Concern -> rows of alert, severity, how long it must hold, meaning."""
    found: dict[str, list[list[str]]] = {}
    for rule in load_rules(profile="guide-moe").rules:
        if not rule.record:
            held = format_duration(rule.for_ms) if rule.for_ms else "at once"
            row = [f"`{rule.name}`", rule.severity, held, rule.annotations["summary"].text]
            found.setdefault(_concern(rule), []).append(row)
    return found


def threshold_rows() -> list[list[str]]:
    """Rows of threshold and its number in each profile."""
    numbers: dict[str, list[str]] = {}
    for profile in PROFILES:
        for rule in load_rules(profile=profile).rules:
            if rule.name == THRESHOLD:
                value = float(rule.text.split("*")[0])
                numbers.setdefault(rule.labels["name"].text, []).append(f"{value:g}")
    return [[f"`{name}`", *values] for name, values in numbers.items()]


def _concern(rule: Rule) -> str:
    return Path(rule.where.rpartition(":")[0]).stem


def _printed() -> Iterator[str]:
    for concern, rows in alert_rows().items():
        yield f"### {concern}"
        yield "| alert | severity | after | means |\n| --- | --- | --- | --- |"
        yield from ("| " + " | ".join(row) + " |" for row in rows)
        yield ""
    yield from ("| " + " | ".join(row) + " |" for row in threshold_rows())


if __name__ == "__main__":
    sys.stdout.write("\n".join(_printed()) + "\n")
