"""What is wrong with a rule file: one problem, where it stands, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

import msgspec

from agent.errors import ConfigError


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """``where`` is ``file:line``; ``rule`` its name or empty. An ``error`` keeps the rules from being loaded."""

    where: str
    message: str
    remedy: str
    rule: str = ""
    level: Literal["error", "warning"] = "error"

    @property
    def fatal(self) -> bool:
        """Whether the rules can be used as they are."""
        return self.level == "error"

    def __str__(self) -> str:
        rule = f"rule {self.rule}: " if self.rule else ""
        return f"{self.where}: {self.level}: {rule}{self.message}\n  remedy: {self.remedy}"


def raised(problems: Iterable[Problem]) -> None:
    """Raises the first error as a ConfigError that says how many more there are; nothing for warnings."""
    errors = [problem for problem in problems if problem.fatal]
    if not errors:
        return
    first = errors[0]
    rule = f"rule {first.rule}: " if first.rule else ""
    more = f" (and {len(errors) - 1} more; `agent rules check` lists all)" if len(errors) > 1 else ""
    raise ConfigError(f"{rule}{first.message}{more}", where=first.where, remedy=first.remedy)


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean …?)`` or nothing."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""
