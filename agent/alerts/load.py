"""From paths to a rule set: which files, then every check in turn, all problems together.

A path is a rule file, a folder of them, or a tree with ``alerts/`` and ``profiles/`` in it (as ``rules/`` is), of which
the alerts are taken and the profile that was asked for. A profile is a name in such a tree, or a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from agent.alerts.compile import Compile, compile_group
from agent.alerts.lint import Lint
from agent.alerts.problem import Problem, nearest, raised
from agent.alerts.rule import THRESHOLD, RuleSet
from agent.alerts.rulefile import RawGroup, read_rule_file
from agent.series import own_metrics
from agent.series.promql import compile_query

_ENDINGS = (".yaml", ".yml")


def shipped_rules() -> Path:
    """``agent/_data/rules`` of the wheel, else ``rules`` of the checkout."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_data" / "rules"
    return packed if packed.is_dir() else package.parent / "rules"


def profiles(tree: Path | None = None) -> tuple[str, ...]:
    """The names of the profiles in a tree of rules (None: the shipped one)."""
    return tuple(path.stem for path in _files((tree or shipped_rules()) / "profiles"))


def load_rules(
    paths: Sequence[Path] = (),
    *,
    profile: str | None = None,
    compiler: Compile | None = None,
    metrics: Collection[str] | None = None,
) -> RuleSet:
    """Rules that hold. No paths: the shipped tree. Raises ConfigError with the first of all errors.

    ``metrics``: the names of the agent's own series (None: those of ``agent/metrics.yaml``).
    """
    rules, problems = read_rules(paths, profile=profile, compiler=compiler, metrics=metrics)
    raised(problems)
    return rules


def check_rules(
    paths: Sequence[Path] = (),
    *,
    profile: str | None = None,
    compiler: Compile | None = None,
    metrics: Collection[str] | None = None,
) -> tuple[Problem, ...]:
    """Everything that is wrong, in the order of files and lines; warnings among it."""
    return read_rules(paths, profile=profile, compiler=compiler, metrics=metrics)[1]


def read_rules(
    paths: Sequence[Path],
    *,
    profile: str | None,
    compiler: Compile | None = None,
    metrics: Collection[str] | None = None,
) -> tuple[RuleSet, tuple[Problem, ...]]:
    """The rules that hold, and what is wrong with the others."""
    files, problems = _chosen([Path(path) for path in paths] or [shipped_rules()], profile)
    raw: list[RawGroup] = []
    for file in files:
        groups, found = read_rule_file(file)
        raw.extend(groups)
        problems.extend(found)
    compiled = [compile_group(group, compiler or compile_query) for group in raw]
    problems.extend(problem for _, found in compiled for problem in found)
    lint = Lint([group for group, _ in compiled], own_metrics() if metrics is None else metrics)
    placed = lint.run()
    problems.extend(lint.problems)
    rules = RuleSet(groups=placed)
    names = sorted({rule.labels["profile"].text for rule in rules.rules if _is_threshold(rule.name, rule.labels)})
    rules = RuleSet(groups=placed, profile=names[0] if names else None)
    return rules, _sorted(problems, files)


def _is_threshold(name: str, labels: Collection[str]) -> bool:
    return name == THRESHOLD and "profile" in labels


def _sorted(problems: Iterable[Problem], files: Sequence[Path]) -> tuple[Problem, ...]:
    order = {str(file): index for index, file in enumerate(files)}

    def place(problem: Problem) -> tuple[int, int]:
        name, _, line = problem.where.rpartition(":")
        return (order.get(name, -1), int(line)) if line.isdigit() else (order.get(problem.where, -1), 0)

    return tuple(sorted(problems, key=place))


def _chosen(paths: Sequence[Path], profile: str | None) -> tuple[list[Path], list[Problem]]:
    """The files to read, each once."""
    files: dict[Path, None] = {}
    problems: list[Problem] = []
    trees = [path for path in paths if (path / "alerts").is_dir()]
    for path in paths:
        found = _files(path / "alerts" if path in trees else path) if path.is_dir() else [path]
        if not found:
            problems.append(Problem(where=str(path), message="holds no rule files", remedy="name a folder of *.yaml"))
        files.update(dict.fromkeys(found))
    if profile is not None:
        file = _profile(profile, trees, problems)
        if file is not None:
            files = dict.fromkeys((file, *files))
    return list(files), problems


def _profile(profile: str, trees: Sequence[Path], problems: list[Problem]) -> Path | None:
    if profile.endswith(_ENDINGS) or "/" in profile:
        return Path(profile)
    known = {path.stem: path for tree in (shipped_rules(), *trees) for path in _files(tree / "profiles")}
    if profile not in known:
        there = ", ".join(sorted(known)) or "none"
        problems.append(
            Problem(
                where=str((*trees, shipped_rules())[0] / "profiles"),
                message=f"no profile `{profile}`{nearest(profile, known)}",
                remedy=f"name a file, or one of these: {there}",
            )
        )
    return known.get(profile)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS and path.is_file())
    except OSError:
        return []
