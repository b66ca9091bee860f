"""Configuration: one strict YAML file, environment overrides, secrets from the environment alone.

In: a file (or none) and an environment mapping. Out: a frozen :class:`Config`, or one
:class:`agent.errors.ConfigError` that names file, line and remedy. Never: a default that hides a typing
error, a secret in a file, in a message or in ``repr``. The table of actions and their default modes lives
here, in :mod:`agent.config.actions`, and nowhere else.
"""

from agent.config.actions import ACTIONS, ActionPolicy, actions_page, default_modes
from agent.config.document import Document, Keys, parse_texts, read_texts
from agent.config.document import Value as Plain
from agent.config.dump import effective, effective_yaml
from agent.config.load import SECRET_NAMES, load
from agent.config.page import configuration_page
from agent.config.schema import configuration_schema
from agent.config.secret import Secret, Secrets
from agent.config.tree import (
    Breaker,
    Budget,
    Config,
    LogLevel,
    Server,
    Settings,
    Slack,
    Verify,
)

__all__ = [
    "ACTIONS",
    "SECRET_NAMES",
    "ActionPolicy",
    "Breaker",
    "Budget",
    "Config",
    "Document",
    "Keys",
    "LogLevel",
    "Plain",
    "Secret",
    "Secrets",
    "Server",
    "Settings",
    "Slack",
    "Verify",
    "actions_page",
    "configuration_page",
    "configuration_schema",
    "default_modes",
    "effective",
    "effective_yaml",
    "load",
    "parse_texts",
    "read_texts",
]
