"""From a file and an environment to a :class:`Config`.

The order: defaults, then the file, then ``VLLM_AGENT__A__B`` variables (values are YAML scalars or flow
collections; letter case and ``-``/``_`` do not matter), then secrets. Every error is a ConfigError whose
``where`` is ``file:line`` or the variable's name. A secret's value appears in no message.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path

from agent.config.actions import default_modes
from agent.config.check import Mismatch, convert, fields_of, unknown_key
from agent.config.document import Document, Keys, Value, parse_scalar, read_document
from agent.config.secret import Secret, Secrets
from agent.config.tree import Config, Settings
from agent.errors import ConfigError

PREFIX = "VLLM_AGENT__"
SECRET_NAMES = (
    "SLACK_WEBHOOK_URL",
    "SLACK_BOT_TOKEN",
    "SLACK_APP_TOKEN",
    "VLLM_API_KEY",
    "ALERTMANAGER_TOKEN",
    "ALERT_WEBHOOK_URL",
    "ALERT_WEBHOOK_TOKEN",
)
_MAX_SECRET = 16_384


def load(path: Path | None, env: Mapping[str, str]) -> Config:
    """The effective configuration. ``path`` None means defaults and environment. Raises ConfigError."""
    document = read_document(path) if path is not None else Document("(no file)", {}, {})
    values = dict(document.value)
    origins: dict[Keys, str] = {}
    for name in sorted(env):
        if name.startswith(PREFIX):
            keys, kind = _override_path(name)
            _place(values, keys, env[name] if _is_text(kind) else parse_scalar(env[name], name), name)
            origins[keys] = name
    try:
        settings = convert(values)
    except Mismatch as mismatch:
        raise _located(mismatch, document, origins) from None
    fields = {field: getattr(settings, field) for field in settings.__struct_fields__}
    return Config(**fields, secrets=_secrets(env, settings, document))


def _located(mismatch: Mismatch, document: Document, origins: Mapping[Keys, str]) -> ConfigError:
    for keys, name in origins.items():
        if mismatch.path[: len(keys)] == keys:
            return ConfigError(mismatch.message, where=name, remedy=mismatch.remedy)
    return ConfigError(mismatch.message, where=document.where(mismatch.path), remedy=mismatch.remedy)


def _is_text(kind: object) -> bool:
    """Text is taken as it stands, so that ``[::1]:9911`` or ``123`` need no quotes inside the variable."""
    return kind is str or (isinstance(kind, types.UnionType) and str in typing.get_args(kind))


def _override_path(name: str) -> tuple[Keys, object]:
    """The keys that a variable names and the type there. Raises ConfigError for a name that leads nowhere."""
    parts = name[len(PREFIX) :].split("__")
    kind: object = Settings
    keys: Keys = ()
    for part in parts:
        known = tuple(default_modes()) if keys == ("actions",) else tuple(fields_of(kind))
        key = next((one for one in known if _plain(one) == _plain(part)), None)
        if key is None:
            mismatch = unknown_key((*keys, part.lower()), known)
            remedy = mismatch.remedy if known else f"`{'.'.join(map(str, keys))}` has no keys: give it whole"
            raise ConfigError(mismatch.message, where=name, remedy=remedy)
        keys = (*keys, key)
        kind = fields_of(kind).get(key)
    return keys, kind


def _plain(text: str) -> str:
    return text.lower().replace("-", "_")


def _place(values: dict[str, Value], keys: Keys, value: Value, name: str) -> None:
    inner = values
    for key in keys[:-1]:
        child = inner.get(str(key))
        if child is None:
            child = {}
        if not isinstance(child, dict):
            raise ConfigError(f"`{key}` in the file is no mapping", where=name, remedy="correct the file first")
        inner[str(key)] = inner = dict(child)
    inner[str(keys[-1])] = value


def _secrets(env: Mapping[str, str], settings: Settings, document: Document) -> Secrets:
    found = {name: _secret(env, name) for name in SECRET_NAMES}
    _check_url(found["SLACK_WEBHOOK_URL"], "copy the whole webhook URL from Slack's app page")
    _check_url(found["ALERT_WEBHOOK_URL"], "write the receiver's whole URL, http://… or https://…")
    keys: dict[str, Secret] = {}
    for index, server in enumerate(settings.servers):
        if server.api_key_env is None:
            continue
        secret = _secret(env, server.api_key_env)
        if secret is None:
            raise ConfigError(
                f"the variable {server.api_key_env} of server `{server.name}` is not set",
                where=document.where(("servers", index, "api_key_env")),
                remedy=f"set {server.api_key_env} or {server.api_key_env}_FILE, or remove api_key_env",
            )
        keys[server.name] = secret
    return Secrets(
        slack_webhook_url=found["SLACK_WEBHOOK_URL"],
        slack_bot_token=found["SLACK_BOT_TOKEN"],
        slack_app_token=found["SLACK_APP_TOKEN"],
        vllm_api_key=found["VLLM_API_KEY"],
        alertmanager_token=found["ALERTMANAGER_TOKEN"],
        webhook_url=found["ALERT_WEBHOOK_URL"],
        webhook_token=found["ALERT_WEBHOOK_TOKEN"],
        server_api_keys=keys,
    )


def _check_url(secret: Secret | None, remedy: str) -> None:
    if secret is not None and not re.match(r"https?://[^\s/]", secret.reveal()):
        raise ConfigError("is not a URL", where=secret.source, remedy=remedy)


def _secret(env: Mapping[str, str], name: str) -> Secret | None:
    value, file = env.get(name, ""), env.get(f"{name}_FILE", "")
    if value and file:
        raise ConfigError(f"{name} and {name}_FILE are both set", where=name, remedy="keep one of them")
    if file:
        return _secret_from_file(f"{name}_FILE", Path(file))
    return Secret(_clean(value, name), name) if value.strip() else None


def _secret_from_file(name: str, path: Path) -> Secret:
    source = f"{name} ({path})"
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_SECRET)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(
            f"the secret's file cannot be read: {reason}", where=source, remedy="check path and permissions"
        ) from None
    if not text.strip():
        raise ConfigError("the secret's file is empty", where=source, remedy="write the secret into it")
    return Secret(_clean(text, source), source)


def _clean(text: str, source: str) -> str:
    """A secret goes into an HTTP header or a URL: one line of printable ASCII."""
    text = text.strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            "the secret holds spaces, line breaks or non-ASCII",
            where=source,
            remedy="copy it again, alone on one line",
        )
    return text
