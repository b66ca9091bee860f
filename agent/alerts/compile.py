"""From a raw rule to one that can be evaluated: the expression compiled, every template parsed.

Problems name the rule and the function, operator, modifier or action that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent.alerts.expression import Expression, read_expression
from agent.alerts.problem import Problem, nearest
from agent.alerts.rule import Group, Rule
from agent.alerts.rulefile import RawGroup, RawRule
from agent.alerts.template import Template, TemplateError
from agent.errors import AgentError
from agent.series.promql import Query, UnsupportedError

Compile = Callable[[str], Query]

_UNKNOWN_FUNCTION = re.compile(r"""unknown function with name ['"]([^'"]*)""")
_REMEDY = ("correct the expression", "write the expression without it")
_KINDS = {
    "string": "gives a text, not a vector",
    "matrix": "gives a range vector, not an instant vector",
}


def compile_group(raw: RawGroup, compiler: Compile) -> tuple[Group, list[Problem]]:
    """The group with the rules whose expression holds, and everything that is wrong."""
    problems: list[Problem] = []
    rules = []
    for one in raw.rules:
        rule = _rule(raw, one, compiler, problems)
        if rule is not None:
            rules.append(rule)
    group = Group(
        name=raw.name,
        file=raw.file,
        rules=tuple(rules),
        interval_ms=raw.interval_ms,
        limit=raw.limit,
        query_offset_ms=raw.query_offset_ms,
    )
    return group, problems


def _rule(group: RawGroup, raw: RawRule, compiler: Compile, problems: list[Problem]) -> Rule | None:
    expression, query = _expression(raw, compiler, problems)
    labels = {name: _text(raw, "labels", name, text, problems) for name, text in {**group.labels, **raw.labels}.items()}
    annotations = {name: _text(raw, "annotations", name, text, problems) for name, text in raw.annotations.items()}
    if expression is None or query is None:
        return None
    return Rule(
        name=raw.name,
        record=raw.record,
        text=raw.expr.strip(),
        where=raw.where,
        group=group.name,
        query=query,
        expression=expression,
        labels=labels,
        annotations=annotations,
        for_ms=raw.for_ms,
        keep_firing_ms=raw.keep_firing_ms,
    )


def _text(raw: RawRule, kind: str, name: str, text: str, problems: list[Problem]) -> Template:
    """The template of an annotation or of an alert's label; a recording rule's labels are plain text."""
    if raw.record:
        return Template.verbatim(text)
    try:
        return Template(text)
    except TemplateError as error:
        problems.append(
            Problem(
                where=raw.lines(kind, name),
                message=f"the template of `{name}`: {error}",
                remedy="use $labels.NAME, $value, humanize, humanizePercentage, humanizeDuration, printf alone",
                rule=raw.name,
            )
        )
        return Template.verbatim(text)


def _expression(raw: RawRule, compiler: Compile, problems: list[Problem]) -> tuple[Expression | None, Query | None]:
    def refuse(message: str, remedy: str) -> tuple[None, None]:
        problems.append(Problem(where=raw.where, message=message, remedy=remedy, rule=raw.name))
        return None, None

    try:
        query = compiler(raw.expr)
        expression = read_expression(raw.expr)
    except AgentError as error:
        return refuse(
            f"the expression: {_words(error.message)}", error.remedy or _REMEDY[type(error) is UnsupportedError]
        )
    if query.kind in _KINDS:
        return refuse(f"the expression {_KINDS[query.kind]}", "give a rule an instant vector or a scalar")
    return expression, query


def _words(message: str) -> str:
    """The parser's words, with the nearest function where one is misspelt."""
    match = _UNKNOWN_FUNCTION.search(message)
    if match is None:
        return message
    return f"unknown function `{match[1]}`{nearest(match[1], _FUNCTIONS)}"


_FUNCTIONS = (
    *("abs", "absent", "absent_over_time", "avg_over_time", "ceil", "changes", "clamp", "clamp_max", "clamp_min"),
    *("count_over_time", "day_of_month", "day_of_week", "day_of_year", "days_in_month", "delta", "deriv", "exp"),
    *("floor", "histogram_avg", "histogram_count", "histogram_quantile", "histogram_sum", "hour", "idelta", "increase"),
    *("irate", "label_join", "label_replace", "last_over_time", "ln", "log10", "log2", "max_over_time", "minute"),
    *("min_over_time", "month", "predict_linear", "present_over_time", "quantile_over_time", "rate", "resets", "round"),
    *("scalar", "sgn", "sort", "sort_desc", "sqrt", "stddev_over_time", "stdvar_over_time", "sum_over_time", "time"),
    *("timestamp", "vector", "year"),
)
