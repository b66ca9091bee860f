"""A rule set as one file for Prometheus, for the Prometheus operator, or for vmalert.

In: checked rules, the profile's thresholds among them. Out: text, the same for the same rules. Expressions and
templates go out as they were written; labels of a group go into its rules, since Prometheus 2.42 knows no labels of a
group. ``runbook_url`` begins with :data:`RUNBOOK_BASE` in the shipped rules, a name that leads nowhere by design
(RFC 2606); an export puts the real place there, or leaves the annotation out where none is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

import yaml

from agent import __version__
from agent.alerts.duration import format_duration
from agent.alerts.rule import Group, Rule, RuleSet

RUNBOOK_BASE = "https://runbooks.invalid/"
Format = Literal["prometheus", "prometheusrule", "vmalert"]
FORMATS: tuple[Format, ...] = ("prometheus", "prometheusrule", "vmalert")
Item: TypeAlias = "str | int | list[Item] | dict[str, Item]"


def export_rules(rules: RuleSet, form: Format, *, runbook_base: str | None = None, name: str = "vllm-agent") -> str:
    """The text of a file. ``runbook_base``: an URL prefix; ``name`` of the PrometheusRule object."""
    groups: list[Item] = [_group(group, form, runbook_base) for group in _apart(rules)]
    body: dict[str, Item] = {"groups": groups}
    if form == "prometheusrule":
        metadata: dict[str, Item] = {"name": name, "labels": {"app.kubernetes.io/name": name}}
        body = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": body,
        }
    text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=1 << 20, allow_unicode=True)
    return "".join(f"# {line}\n" for line in _head(rules, form)) + text


def _head(rules: RuleSet, form: Format) -> list[str]:
    profile = f"profile {rules.profile}" if rules.profile else "no profile"
    lines = [f"Made by `agent rules export --format {form}`, version {__version__}, {profile}. Do not edit."]
    if form == "vmalert":
        lines.append(
            "For vmalert 1.145 or newer; start it with -disableAlertgroupLabel, so that alerts keep their labels."
        )
    return lines


def _apart(rules: RuleSet) -> list[Group]:
    """The groups with names that differ, as one file needs them."""
    seen: dict[str, int] = {}
    groups = []
    for group in rules.groups:
        seen[group.name] = seen.get(group.name, 0) + 1
        count = seen[group.name]
        groups.append(group if count == 1 else dataclasses.replace(group, name=f"{group.name}-{count}"))
    return groups


def _group(group: Group, form: Format, runbook_base: str | None) -> dict[str, Item]:
    made: dict[str, Item] = {"name": group.name}
    if form == "vmalert":
        made["type"] = "prometheus"
    if group.interval_ms:
        made["interval"] = format_duration(group.interval_ms)
    if group.limit:
        made["limit"] = group.limit
    if group.query_offset_ms:
        made["eval_delay" if form == "vmalert" else "query_offset"] = format_duration(group.query_offset_ms)
    rules: list[Item] = [_rule(rule, runbook_base) for rule in group.rules]
    made["rules"] = rules
    return made


def _rule(rule: Rule, runbook_base: str | None) -> dict[str, Item]:
    made: dict[str, Item] = {"record" if rule.record else "alert": rule.name, "expr": rule.text}
    if rule.for_ms:
        made["for"] = format_duration(rule.for_ms)
    if rule.keep_firing_ms:
        made["keep_firing_for"] = format_duration(rule.keep_firing_ms)
    if rule.labels:
        made["labels"] = _texts({name: one.text for name, one in rule.labels.items()})
    annotations = {name: one.text for name, one in rule.annotations.items()}
    link = annotations.get("runbook_url", "")
    if link.startswith(RUNBOOK_BASE):
        del annotations["runbook_url"]
        if runbook_base is not None:
            annotations["runbook_url"] = f"{runbook_base.rstrip('/')}/{link.removeprefix(RUNBOOK_BASE)}"
    if annotations:
        made["annotations"] = _texts(annotations)
    return made


def _texts(pairs: Mapping[str, str]) -> dict[str, Item]:
    return dict(pairs)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, list items indented, no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
