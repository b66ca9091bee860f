"""A rule that nobody wrote: one expression, to be evaluated once by hand.

In: the text of an expression. Out: a rule set that records it, so that what is unknown is told of it as of any rule.
"""

from __future__ import annotations

from agent.alerts.compile import compile_group
from agent.alerts.lint import Lint
from agent.alerts.rule import RuleSet
from agent.alerts.rulefile import RawGroup, RawRule
from agent.errors import UsageError
from agent.series.promql import compile_query

ADHOC = "expression"


def expression_rules(text: str) -> RuleSet:
    """Raises UsageError where the expression cannot be evaluated."""
    raw = RawRule(name=ADHOC, record=True, expr=text, where=text, lines=lambda *_: text, labels={}, annotations={})
    group, problems = compile_group(RawGroup(name=ADHOC, file="", where=text, rules=(raw,), labels={}), compile_query)
    if problems:
        raise UsageError(problems[0].message, where=text, remedy=problems[0].remedy)
    return RuleSet(groups=Lint([group], None).run())
