"""The effective configuration as people may see it: secrets as their source, passwords in URLs cut.

In: a :class:`Config`. Out: plain values or YAML text. Never: a secret.
"""

from __future__ import annotations

import re

import msgspec
import yaml

from agent.config.secret import Secret
from agent.config.tree import Config, Settings

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def effective(config: Config) -> dict[str, object]:
    """The tree in the file's own order, with ``secrets`` as "*** (from NAME)" or None."""
    tree: dict[str, object] = msgspec.to_builtins(
        Settings(**{field: getattr(config, field) for field in Settings.__struct_fields__})
    )
    secrets = config.secrets
    tree["secrets"] = {
        "slack_webhook_url": _shown(secrets.slack_webhook_url),
        "slack_bot_token": _shown(secrets.slack_bot_token),
        "slack_app_token": _shown(secrets.slack_app_token),
        "vllm_api_key": _shown(secrets.vllm_api_key),
        "server_api_keys": {name: _shown(secret) for name, secret in secrets.server_api_keys.items()},
    }
    redacted = _redact(tree)
    assert isinstance(redacted, dict)
    return redacted


def effective_yaml(config: Config) -> str:
    """:func:`effective` as YAML; strings that YAML 1.1 would read as booleans come quoted."""
    return yaml.safe_dump(effective(config), sort_keys=False, allow_unicode=True, width=110)


def _shown(secret: Secret | None) -> str | None:
    return None if secret is None else f"*** (from {secret.source})"


def _redact(value: object) -> object:
    if isinstance(value, str):
        return _CREDENTIALS.sub("***@", value)
    if isinstance(value, dict):
        return {key: _redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact(item) for item in value]
    return value
