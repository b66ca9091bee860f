"""Alerts: Prometheus rule files judged in process.

In: rule files, a profile of thresholds, and the series of one target. Out: for every rule its state as Prometheus has
it (inactive, pending, firing), beside it what could not be judged and why, and the changes that people are told of.

From a file to an alert: ``rulefile`` reads, ``compile`` makes expressions and templates of it, ``lint`` checks rules
against each other and finds the target of each; :class:`Judge` evaluates the rules of one target on its store, with
``lifecycle`` for the alerts, ``unknown`` for what cannot be judged, and ``memory`` for what outlives the process.
Beside it: ``testing`` runs promtool's unit tests on the same rules, ``export`` writes them for other programs, and
``adhoc`` makes a rule of an expression that is tried by hand.
"""

from agent.alerts.adhoc import ADHOC, expression_rules
from agent.alerts.duration import format_duration, parse_duration
from agent.alerts.export import FORMATS, RUNBOOK_BASE, Format, export_rules
from agent.alerts.judge import Judge, RuleStatus
from agent.alerts.load import check_rules, load_rules, profiles, read_rules, shipped_rules
from agent.alerts.own import OwnContract
from agent.alerts.problem import Problem
from agent.alerts.rule import THRESHOLD, Group, Rule, RuleSet, Store, Target
from agent.alerts.template import Template, TemplateError
from agent.alerts.testing import Failure, Outcome, run_test_file
from agent.alerts.unknown import Contract, UnknownKind

__all__ = [
    "ADHOC",
    "FORMATS",
    "RUNBOOK_BASE",
    "THRESHOLD",
    "Contract",
    "Failure",
    "Format",
    "Group",
    "Judge",
    "Outcome",
    "OwnContract",
    "Problem",
    "Rule",
    "RuleSet",
    "RuleStatus",
    "Store",
    "Target",
    "Template",
    "TemplateError",
    "UnknownKind",
    "check_rules",
    "export_rules",
    "expression_rules",
    "format_duration",
    "load_rules",
    "parse_duration",
    "profiles",
    "read_rules",
    "run_test_file",
    "shipped_rules",
]
