"""What the tests of this folder share: rules from text, a store that is fed sample by sample, a judge over both."""

from __future__ import annotations

from pathlib import Path

from agent.alerts import Judge, Problem, RuleSet, check_rules, load_rules
from agent.model import Alert
from agent.series import Selection, Store, labels_of

METRICS = {"vllm_agent_gpu_up", "vllm_agent_gpu_utilization_ratio", "vllm_agent_repair_seconds"}
FOREVER_MS = 400 * 86_400_000


def written(folder: Path, text: str, name: str = "rules.yaml") -> Path:
    """A rule file of this text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def rules_of(folder: Path, text: str) -> RuleSet:
    """The rules of one file; it must hold."""
    return load_rules([written(folder, text)], metrics=METRICS)


def problems_of(folder: Path, text: str) -> tuple[Problem, ...]:
    """Everything wrong with one file."""
    return check_rules([written(folder, text)], metrics=METRICS)


def errors_of(folder: Path, text: str) -> list[str]:
    """The errors of one file as ``line: message``."""
    return [f"{p.where.rpartition(':')[2]}: {p.message}" for p in problems_of(folder, text) if p.fatal]


def everything() -> Store:
    """A store that keeps all and stamps nothing."""
    return Store(Selection.all(FOREVER_MS))


def put(store: Store, at_ms: int, name: str, value: float, **labels: str) -> None:
    """One sample."""
    store.append(labels_of({"__name__": name, **labels}), at_ms, value)


def judge_of(folder: Path, text: str, store: Store) -> Judge:
    """A judge of one file's rules."""
    return Judge(rules_of(folder, text), store, server="a")


def told(alerts: tuple[Alert, ...]) -> list[str]:
    """``state name i`` of each alert, in order of names."""
    return sorted(f"{one.state.value} {one.name} {one.labels.get('i', '')}".strip() for one in alerts)
