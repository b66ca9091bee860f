"""Alerts: Prometheus rule files judged in process.

In: rule files, a profile of thresholds, and the series of one target. Out: for every rule its state as Prometheus has
it (inactive, pending, firing), beside it what could not be judged and why, and the changes that people are told of.

From a file to an alert: ``rulefile`` reads, ``compile`` makes expressions and templates of it, ``lint`` checks rules
against each other and finds the target of each; :class:`Judge` evaluates the rules of one target on its store, with
``lifecycle`` for the alerts, ``unknown`` for what cannot be judged, and ``memory`` for what outlives the process.
"""

from agent.alerts.duration import format_duration, parse_duration
from agent.alerts.judge import Judge, RuleStatus
from agent.alerts.load import check_rules, load_rules, profiles, read_rules, shipped_rules
from agent.alerts.problem import Problem
from agent.alerts.rule import Group, Rule, RuleSet, Store, Target
from agent.alerts.template import Template, TemplateError
from agent.alerts.unknown import Contract

__all__ = [
    "Contract",
    "Group",
    "Judge",
    "Problem",
    "Rule",
    "RuleSet",
    "RuleStatus",
    "Store",
    "Target",
    "Template",
    "TemplateError",
    "check_rules",
    "format_duration",
    "load_rules",
    "parse_duration",
    "profiles",
    "read_rules",
    "shipped_rules",
]
