"""The states of every alert at every evaluation, by Prometheus' own rule groups: ``promtool test rules``.

In: the stored samples, a rule set, what the judge found. Out: what promtool says against it, nothing where all is
equal. promtool runs the code of the server's rule groups (rules/group.go) on a storage of its own and a clock that it
moves itself, so ``for``, ``keep_firing_for`` and the end of alerts come from Prometheus at the very same times. It
knows one interval for all groups; so the groups of each interval are run for themselves, on what the others recorded,
one after the other in the order of the files.
``ALERTS`` and ``ALERTS_FOR_STATE`` are asked for whole after every evaluation: an alert too many differs as well.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from agent.alerts import RuleSet, export_rules
from agent.series import Labels, is_stale
from tests.differential.ours import Judged, head_of, interval_of, number
from tests.differential.samples import Stored, recorded
from tests.differential.scenes import BASE_MS, Scene

ASKED = ("ALERTS", "ALERTS_FOR_STATE")


@dataclass(frozen=True)
class Verdict:
    """``asked``: how many vectors were compared; ``samples``: in them; ``said``: promtool on each that differs."""

    asked: int
    samples: int
    said: tuple[str, ...]


def compare_states(
    promtool: str, rules: RuleSet, raw: Stored, judged: Judged, scene: Scene, folder: Path
) -> list[Verdict]:
    """One verdict for each interval of groups that have alerts."""
    step_ms = scene.step_s * 1000
    intervals = sorted({interval_of(rules, rule, step_ms) for rule in rules.rules if not rule.record})
    return [_of(promtool, rules, raw, judged, scene, interval, folder) for interval in intervals]


def _of(
    promtool: str, rules: RuleSet, raw: Stored, judged: Judged, scene: Scene, interval: int, folder: Path
) -> Verdict:
    step_ms = scene.step_s * 1000
    groups = tuple(one for one in rules.groups if max(step_ms, one.interval_ms or 0) == interval)
    rest = [rule for rule in rules.rules if rule.record and interval_of(rules, rule, step_ms) != interval]
    others = recorded(judged.written[rule.key] for rule in rest)
    here = dataclasses.replace(rules, groups=groups)
    file = folder / f"rules-{interval}.yaml"
    file.write_text(export_rules(here, "prometheus"))
    cases, samples = _cases(judged, [rule.key for group in groups for rule in group.rules if not rule.record])
    test = {
        "rule_files": [file.name],
        "evaluation_interval": f"{interval // 1000}s",
        "group_eval_order": [group["name"] for group in yaml.safe_load(file.read_text())["groups"]],
        "tests": [
            {
                "interval": f"{scene.slot_ms}ms",
                "input_series": list(_input({**raw, **others}, scene.slot_ms)),
                "promql_expr_test": cases,
            }
        ],
    }
    path = folder / f"states-{interval}.yaml"
    path.write_text(json.dumps(test))
    return Verdict(len(cases), samples, _run(promtool, path))


def _cases(judged: Judged, keys: list[str]) -> tuple[list[dict[str, object]], int]:
    """A question for each vector after each evaluation, and how many samples are expected in all."""
    cases: list[dict[str, object]] = []
    count = 0
    for at_ms, states in sorted(_states(judged, keys).items()):
        for name in ASKED:
            expected = [(labels, value) for labels, value in states.items() if dict(labels)["__name__"] == name]
            count += len(expected)
            cases.append(
                {
                    "expr": name,
                    "eval_time": f"{(at_ms - BASE_MS) // 1000}s",
                    "exp_samples": [{"labels": head_of(labels), "value": value} for labels, value in expected],
                }
            )
    return cases, count


def _states(judged: Judged, keys: list[str]) -> Mapping[int, Mapping[Labels, float]]:
    states: dict[int, dict[Labels, float]] = defaultdict(dict)
    for key in keys:
        for at_ms, found in judged.states[key].items():
            states[at_ms].update(found)
    return states


def _input(stored: Stored, slot_ms: int) -> Iterator[dict[str, str]]:
    """Series in promtool's notation; its time begins at BASE_MS."""
    for labels, samples in stored.items():
        clock = dict(labels)["__name__"].endswith("_last_timestamp_seconds")
        tokens: list[str] = []
        following = 0
        for at_ms in sorted(samples):
            slot = (at_ms - BASE_MS) // slot_ms
            if slot > following:
                tokens.append(f"_x{slot - following}")
            tokens.append(_token(samples[at_ms], BASE_MS / 1000 if clock else 0.0))
            following = slot + 1
        yield {"series": head_of(labels), "values": " ".join(tokens)}


def _token(value: float, origin: float) -> str:
    return "stale" if is_stale(value) else number(value - origin).removeprefix("+")


def _run(promtool: str, path: Path) -> tuple[str, ...]:
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=550)
    if done.returncode == 0:
        return ()
    said = done.stdout + done.stderr
    parts = [part for part in re.split(r"\n(?=\s*expr: )", said) if part.strip() not in ("", "FAILED:")]
    return tuple(map(_shortened, parts)) or (said,)


def _shortened(said: str) -> str:
    """Of two long vectors the samples that only one of them has."""
    found = re.search(r'expr: "(\w+)", time: (\w+),\s*exp: *(.*)\n\s*got: *(.*)', said)
    if found is None:
        return said.strip()
    here, there = (set(re.findall(r"\{.*?\} [^ ,]+", found[side])) for side in (3, 4))
    return f"{found[1]} at {found[2]}: only here {sorted(here - there)}, only there {sorted(there - here)}"
