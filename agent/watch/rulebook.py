"""The rules in force: the shipped pack with the operator's files beside it, compiled once for each profile in use.

In: the settings. Out: a rule set per profile. A broken file of the operator's must not take the watch away with it:
:func:`rulebook` then holds the shipped pack alone and says what is wrong; a reload keeps the rules as they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.alerts import RuleSet, Target, load_rules, shipped_rules
from agent.config import Config
from agent.errors import AgentError


@dataclass(frozen=True, kw_only=True)
class Rulebook:
    """``problem``: what is wrong with the operator's files or profiles, None where all is in force."""

    by_profile: Mapping[str, RuleSet]
    default: str
    problem: str | None = None

    def of_server(self, profile: str | None) -> RuleSet:
        """The rules on a server's own series, with its profile or the default one."""
        name = profile if profile is not None and profile in self.by_profile else self.default
        return self.by_profile[name].for_target(Target.SERVER)

    def of_agent(self) -> RuleSet:
        """The rules on the agent's series."""
        return self.by_profile[self.default].for_target(Target.AGENT)


def read_rulebook(settings: Config, in_use: Collection[str] = ()) -> Rulebook:
    """All that the settings name, and the profiles ``in_use``. Raises ConfigError with file, line and remedy."""
    named = (one.profile for one in settings.servers if one.profile is not None)
    wanted = {settings.rules.profile, *in_use, *named}
    paths = (shipped_rules(), *(Path(path) for path in settings.rules.paths))
    return Rulebook(
        by_profile={name: load_rules(paths, profile=name) for name in sorted(wanted)},
        default=settings.rules.profile,
    )


def rulebook(settings: Config) -> Rulebook | None:
    """The same at the start of the watcher, where nothing may stand in the way; None where no rule is wanted."""
    if not settings.rules.enabled:
        return None
    try:
        return read_rulebook(settings)
    except AgentError as error:
        default = type(settings.rules)().profile
        shipped = load_rules((shipped_rules(),), profile=default)
        return Rulebook(by_profile={default: shipped}, default=default, problem=str(error))
