"""``agent rules check|test|list|eval|export``: the rules, as files.

In: rule files, test files, or nothing for the rules that come with the agent. Out: what is wrong with them, whether
their tests hold, what they are, what they say of a server, and one file for another program to load.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli.client import output_option

if TYPE_CHECKING:
    from agent.alerts import Format, Outcome, Problem, RuleSet

DEFAULT_PROFILE = "guide-moe"
_FILES = click.argument("files", nargs=-1, type=click.Path(path_type=Path))
_PROFILE = click.option(
    "--profile", help=f"Thresholds: a profile's name or file (default: the files' own, else {DEFAULT_PROFILE})."
)


@click.group()
def rules() -> None:
    """Check, test, list, try and export alerting rules."""


@rules.command("check")
@_FILES
@_PROFILE
def check(files: tuple[Path, ...], profile: str | None) -> int:
    """Check rule FILES or folders; all problems are said. Without FILES: the shipped rules with each profile."""
    from agent.alerts import profiles

    chosen = [profile] if profile or files else list(profiles())
    problems: dict[str, Problem] = {}
    count = 0
    for one in chosen:
        loaded, found = _read(files, one)
        problems.update((str(problem), problem) for problem in found)
        count = max(count, sum(1 for _ in loaded.rules))
    for text in problems:
        click.echo(text, err=True)
    errors = sum(problem.fatal for problem in problems.values())
    if problems:
        click.echo(f"{errors} errors, {len(problems) - errors} warnings")
    else:
        click.echo(f"{count} rules: ok")
    return 64 if errors else 0


@rules.command("test")
@_FILES
def test(files: tuple[Path, ...]) -> int:
    """Run unit tests of rules, FILES or folders of them, as `promtool test rules` does. Without FILES: the shipped."""
    from agent.alerts import run_test_file, shipped_rules
    from agent.errors import AgentError

    passed = failed = 0
    for path in _test_files(files or (shipped_rules() / "tests",)):
        try:
            outcome = run_test_file(path)
        except AgentError as error:
            click.echo(f"{path}: FAILED\n  {error}")
            failed += 1
            continue
        _show_outcome(outcome)
        passed += outcome.passed
        failed += len(outcome.failures)
    click.echo(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _test_files(paths: tuple[Path, ...]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(inner for inner in path.iterdir() if inner.suffix in (".yaml", ".yml"))
        else:
            found.append(path)
    if not found:
        raise click.UsageError(f"no test files (*.yaml) in {', '.join(map(str, paths))}")
    return found


def _show_outcome(outcome: Outcome) -> None:
    if not outcome.failures:
        click.echo(f"{outcome.path}: ok ({outcome.passed})")
        return
    click.echo(f"{outcome.path}: FAILED ({len(outcome.failures)} of {outcome.passed + len(outcome.failures)})")
    for failure in outcome.failures:
        click.echo(f"  {failure.where}:\n{failure.text}")


@rules.command("list")
@_FILES
@output_option
def list_(files: tuple[Path, ...], output: str) -> None:
    """List rules: whose series they judge, severity, for how long, and the threshold of each profile."""
    from agent.cli.rules_list import listed, table

    found = listed(files)
    if output == "json":
        click.echo(json.dumps({"rules": found}, indent=2, sort_keys=False))
    else:
        click.echo(table(found))


@rules.command("eval")
@click.argument("expression", metavar="EXPR", required=False)
@click.option("--rule", help="A rule by name, of the shipped ones or of --rules.")
@click.option(
    "--rules", "files", multiple=True, type=click.Path(path_type=Path), help="Rule files instead of the shipped."
)
@_PROFILE
@click.option("--url", help="The server (or the agent): http://HOST:PORT, with or without /metrics.")
@click.option(
    "--file",
    "scrapes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A saved /metrics answer; several are scrapes in order.",
)
@click.option(
    "--interval", type=click.FloatRange(0.05, 3600), default=5.0, show_default=True, help="Seconds between two scrapes."
)
@click.option(
    "--scrapes", "count", type=click.IntRange(1, 1000), help="How many (default: 1, or 2 where a window is read)."
)
@click.option("--watch", is_flag=True, help="Go on until it is interrupted.")
@output_option
def eval_(
    expression: str | None,
    rule: str | None,
    files: tuple[Path, ...],
    profile: str | None,
    url: str | None,
    scrapes: tuple[Path, ...],
    interval: float,
    count: int | None,
    watch: bool,
    output: str,
) -> int:
    """Evaluate EXPR, one rule, or all rules on scrapes of --url or on saved ones."""
    from agent.cli.rules_eval import Asked, evaluate

    if expression is not None and rule is not None:
        raise click.UsageError("give EXPR or --rule, not both")
    if (url is None) == (not scrapes):
        raise click.UsageError("say what to evaluate on: --url URL, or --file FILE for each saved scrape")
    if scrapes and (watch or count):
        raise click.UsageError("--watch and --scrapes need --url")
    loaded = None if expression is not None else load(files, profile)
    asked = Asked(expression=expression, rule=rule, rules=loaded, seconds=interval, count=count, watch=watch)
    return evaluate(asked, url=url, files=scrapes, as_json=output == "json")


@rules.command("export")
@_FILES
@click.option(
    "--format", "form", required=True, type=click.Choice(["prometheus", "prometheusrule", "vmalert"]), help="For whom."
)
@_PROFILE
@click.option("--runbook-base", metavar="URL", help="Where the runbooks are; without it the links are left out.")
@click.option("--name", default="vllm-agent", show_default=True, help="Name of the PrometheusRule object.")
def export(files: tuple[Path, ...], form: str, profile: str | None, runbook_base: str | None, name: str) -> None:
    """Print all rules with one profile as a single file that Prometheus, its operator or vmalert loads."""
    from agent.alerts import FORMATS, export_rules

    chosen: Format = next(one for one in FORMATS if one == form)
    click.echo(export_rules(load(files, profile), chosen, runbook_base=runbook_base, name=name), nl=False)


def load(files: tuple[Path, ...], profile: str | None) -> RuleSet:
    """The rules with a profile; raises ConfigError for the first error."""
    from agent.alerts import load_rules, read_rules

    if profile is None:
        rules, _ = read_rules(files, profile=None)
        profile = None if rules.profile else DEFAULT_PROFILE
    return load_rules(files, profile=profile)


def _read(files: tuple[Path, ...], profile: str | None) -> tuple[RuleSet, tuple[Problem, ...]]:
    from agent.alerts import read_rules

    if profile is None:
        found = read_rules(files, profile=None)
        if found[0].profile:
            return found
    return read_rules(files, profile=profile or DEFAULT_PROFILE)
