"""Secrets as a type that cannot be printed by accident.

In: a text and the name of the place it came from. Out: the text, only through :meth:`Secret.reveal`, so
that every use can be found by searching for that word. ``repr``, ``str``, formatting and JSON show
``***``.
"""

from __future__ import annotations

import hmac

import msgspec


class Secret:
    """A text that must not be shown. ``source`` (an environment variable or a file) may be."""

    __slots__ = ("_text", "source")

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self.source = source

    def reveal(self) -> str:
        """The secret itself; hand it to the client that needs it and to nothing else."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self.source)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """All secrets that were found. ``server_api_keys``: server name to the key of its ``api_key_env``."""

    slack_webhook_url: Secret | None = None
    slack_bot_token: Secret | None = None
    slack_app_token: Secret | None = None
    vllm_api_key: Secret | None = None
    alertmanager_token: Secret | None = None
    webhook_url: Secret | None = None
    webhook_token: Secret | None = None
    server_api_keys: dict[str, Secret] = {}

    def api_key(self, server: str) -> Secret | None:
        """The key for the server of that name: its own, else the common one."""
        return self.server_api_keys.get(server, self.vllm_api_key)
