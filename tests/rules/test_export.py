"""What is exported is what was loaded: other programs take it, it judges the same, and it never differs by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agent.alerts import FORMATS, Rule, RuleSet, export_rules, load_rules, run_test_file
from tests.rules.pack import TESTS, each_prometheus, promtool, run
from tests.support.prometheus import program

DURATION = "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
# The schema of the object PrometheusRule, monitoring.coreos.com/v1, as its definition in the cluster has it.
PROMETHEUS_RULE: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PrometheusRule"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {
                    "type": "string",
                    "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
                },
                "labels": TEXTS,
            },
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "groups": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string", "minLength": 1},
                            "interval": {"type": "string", "pattern": DURATION},
                            "query_offset": {"type": "string", "pattern": DURATION},
                            "limit": {"type": "integer"},
                            "partial_response_strategy": {"type": "string"},
                            "rules": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["expr"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "record": {"type": "string"},
                                        "alert": {"type": "string"},
                                        "expr": {"type": ["integer", "string"]},
                                        "for": {"type": "string", "pattern": DURATION},
                                        "keep_firing_for": {"type": "string", "pattern": DURATION, "minLength": 1},
                                        "labels": TEXTS,
                                        "annotations": TEXTS,
                                    },
                                },
                            },
                        },
                    },
                }
            },
        },
    },
}


@pytest.fixture(scope="module")
def pack() -> RuleSet:
    return load_rules(profile="guide-moe")


def judged(rule: Rule) -> tuple[Any, ...]:
    """What a rule does, without where it stands."""
    labels = {name: one.text for name, one in rule.labels.items()}
    notes = {name: one.text for name, one in rule.annotations.items() if name != "runbook_url"}
    return (rule.name, rule.record, rule.text, rule.for_ms, rule.keep_firing_ms, labels, notes)


@pytest.fixture(params=["guide-moe", "batch"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RuleSet, Path]:
    rules = load_rules(profile=request.param)
    file = tmp_path / "exported.yaml"
    file.write_text(export_rules(rules, "prometheus"))
    return rules, file


def test_the_exported_file_holds_the_same_rules(exported: tuple[RuleSet, Path]) -> None:
    rules, file = exported
    again = load_rules([file])
    assert [judged(rule) for rule in again.rules] == [judged(rule) for rule in rules.rules]
    assert [(group.name, group.interval_ms) for group in again.groups] == [
        (group.name, group.interval_ms) for group in rules.groups
    ]
    assert again.profile == rules.profile


@each_prometheus
def test_prometheus_takes_the_exported_file(version: str, exported: tuple[RuleSet, Path]) -> None:
    code, text = promtool(version, "check", "rules", str(exported[1]))
    assert code == 0, text


def test_the_unit_tests_hold_on_the_exported_file(pack: RuleSet, tmp_path: Path) -> None:
    file = tmp_path / "exported.yaml"
    file.write_text(export_rules(pack, "prometheus", runbook_base="https://runbooks.invalid"))
    tests = tmp_path / "tests.yaml"
    source = next(path for path in TESTS if path.stem == "queue")
    tests.write_text(
        "\n".join(
            "rule_files: [exported.yaml]" if line.startswith("rule_files") else line
            for line in source.read_text().splitlines()
        )
    )
    assert run_test_file(tests).failures == ()


def test_vmalert_takes_the_exported_file(pack: RuleSet, tmp_path: Path) -> None:
    file = tmp_path / "vmalert.yaml"
    file.write_text(export_rules(pack, "vmalert"))
    code, text = run(program("vmalert", "3"), "-dryRun", f"-rule={file}")
    assert code == 0, text
    assert {group["type"] for group in yaml.safe_load(file.read_text())["groups"]} == {"prometheus"}


def test_the_kubernetes_object_is_valid_and_holds_the_same_groups(pack: RuleSet) -> None:
    made = yaml.safe_load(export_rules(pack, "prometheusrule", name="team-a-vllm"))
    jsonschema.validate(made, PROMETHEUS_RULE)
    assert made["metadata"]["name"] == "team-a-vllm"
    assert made["spec"] == yaml.safe_load(export_rules(pack, "prometheus"))


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_is_the_same_twice_and_says_what_it_was_made_from(form: Any, pack: RuleSet) -> None:
    text = export_rules(pack, form)
    assert text == export_rules(load_rules(profile="guide-moe"), form)
    assert f"--format {form}" in text.splitlines()[0]
    assert "guide-moe" in text.splitlines()[0]


def test_runbook_links_get_their_place_or_are_left_out(pack: RuleSet) -> None:
    text = export_rules(pack, "prometheus", runbook_base="https://wiki.example.com/sre/")
    assert "runbook_url: https://wiki.example.com/sre/runbooks/VLLMQueueLong\n" in text
    assert "runbooks.invalid" not in text
    assert "runbook_url" not in export_rules(pack, "prometheus")


def test_a_link_of_ones_own_stays_and_group_settings_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "groups:\n- name: g\n  interval: 90s\n  limit: 5\n  query_offset: 30s\n  labels: {team: a}\n  rules:\n"
        "  - {alert: A, expr: up == 0, labels: {severity: info},"
        " annotations: {summary: s, runbook_url: 'https://x.example/r'}}\n"
    )
    rules = load_rules([file])
    [group] = yaml.safe_load(export_rules(rules, "prometheus"))["groups"]
    assert (group["interval"], group["limit"], group["query_offset"]) == ("1m30s", 5, "30s")
    assert group["rules"][0]["labels"] == {"team": "a", "severity": "info"}
    assert group["rules"][0]["annotations"]["runbook_url"] == "https://x.example/r"
    [group] = yaml.safe_load(export_rules(rules, "vmalert"))["groups"]
    assert group["eval_delay"] == "30s"


def test_groups_of_one_name_in_two_files_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        alert = f"{{alert: {name}, expr: up == 0, labels: {{severity: info}}}}"
        (tmp_path / f"{name}.yaml").write_text(f"groups: [{{name: g, rules: [{alert}]}}]\n")
    made = yaml.safe_load(export_rules(load_rules([tmp_path]), "prometheus"))
    assert [group["name"] for group in made["groups"]] == ["g", "g-2"]
