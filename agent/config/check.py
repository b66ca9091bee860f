"""Plain values against the tree: the first thing that does not hold, as path, message and remedy.

In: values and a struct type. Out: the struct, or :class:`Mismatch` with the path, so that the caller can
say file and line (or the environment variable). Names come first (unknown key, nearest known one), then
types and bounds (msgspec), then what no type says: addresses, URLs, names that must differ.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.config.actions import default_modes
from agent.config.document import Keys, Value
from agent.config.tree import Server, Settings
from agent.model import Mode

T = TypeVar("T")
_SECRET = re.compile(r"token|secret|password|webhook|api_?key$", re.IGNORECASE)
_PATH = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)


class Mismatch(Exception):
    """A value that does not hold, before anyone knows its line."""

    def __init__(self, path: Keys, message: str, remedy: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.remedy = remedy


def dotted(path: Keys) -> str:
    """``servers[0].url``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def convert(values: Mapping[str, Value]) -> Settings:
    """Values to the tree. Raises Mismatch."""
    check_names(values, Settings, ())
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise _mismatch(str(error)) from None
    for mismatch in _semantic(settings):
        raise mismatch
    modes = {**default_modes(), **settings.actions}
    return msgspec.structs.replace(settings, actions=modes)


def check_names(value: object, kind: object, path: Keys) -> None:
    """Every key of every struct is known, all the way down. Raises Mismatch with the nearest name."""
    struct = _struct_of(kind)
    if struct is not None and isinstance(value, dict):
        hints = typing.get_type_hints(struct)
        for key, item in value.items():
            if key not in hints:
                raise unknown_key((*path, key), tuple(hints))
            check_names(item, hints[key], (*path, key))
    elif isinstance(value, list) and (item_kind := _item_of(kind)) is not None:
        for index, item in enumerate(value):
            check_names(item, item_kind, (*path, index))
    elif path == ("actions",) and isinstance(value, dict):
        _check_modes(value, path)


def _check_modes(modes: dict[str, Value], path: Keys) -> None:
    """msgspec does not say which key of a mapping is wrong, so the modes are checked here."""
    known = tuple(default_modes())
    for key, mode in modes.items():
        here = (*path, key)
        if key not in known:
            raise unknown_key(here, known)
        if mode not in [one.value for one in Mode]:
            remedy = "write one of off, dry-run, approve, auto"
            raise Mismatch(here, f"`{dotted(here)}`: is no mode of an action", remedy)


def unknown_key(path: Keys, known: tuple[str, ...]) -> Mismatch:
    """The error for a name that is not known, with the nearest one that is."""
    key = str(path[-1])
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if _SECRET.search(key) and not near:
        remedy = (
            "secrets come from the environment: SLACK_WEBHOOK_URL, SLACK_BOT_TOKEN, VLLM_API_KEY, ALERT_WEBHOOK_URL,"
            " ALERTMANAGER_TOKEN or *_FILE"
        )
    elif near:
        remedy = f"did you mean `{near[0]}`?"
    else:
        remedy = f"known here: {', '.join(sorted(known))}"
    return Mismatch(path, f"unknown key `{dotted(path)}`", remedy)


def fields_of(kind: object) -> dict[str, object]:
    """Field names and types of a struct type (also optional), else empty."""
    struct = _struct_of(kind)
    return dict(typing.get_type_hints(struct)) if struct is not None else {}


def _struct_of(kind: object) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and issubclass(kind, msgspec.Struct):
        return kind
    return None


def _item_of(kind: object) -> object | None:
    arguments = typing.get_args(kind)
    return arguments[0] if typing.get_origin(kind) is tuple and arguments else None


def _mismatch(text: str) -> Mismatch:
    match = _PATH.match(text)
    assert match is not None
    path = _keys(match["path"] or "$")
    message = f"`{dotted(path)}`: {match['message'][0].lower()}{match['message'][1:]}"
    return Mismatch(path, message, _type_remedy(match["message"], path))


def _type_remedy(message: str, path: Keys) -> str:
    if path == ("log_level",):
        return "write one of debug, info, warning, error"
    if path == ("slack", "channel_id"):
        return "write the channel's id (C…), found at the bottom of the channel's details in Slack"
    if "got `str`" in message and ("`int`" in message or "`float`" in message):
        return "write the number without quotes or unit"
    if "missing required field" in message:
        return "add it"
    return "see `agent schema configuration` for what is allowed"


def _keys(path: str) -> Keys:
    keys: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path):
        if name:
            keys.append(name)
        elif index != "...":
            keys.append(int(index))
    return tuple(keys)


def _semantic(settings: Settings) -> Iterator[Mismatch]:
    if (reason := _address_problem(settings.listen)) is not None:
        yield Mismatch(("listen",), f"`listen`: {reason}", "write HOST:PORT, for example 127.0.0.1:9911")
    if settings.runbook_base_url is not None and not _web_url(settings.runbook_base_url):
        yield Mismatch(("runbook_base_url",), "`runbook_base_url`: not a URL", "write http://… or https://…")
    if settings.slack.api_url is not None and not _web_url(settings.slack.api_url):
        yield Mismatch(("slack", "api_url"), "`slack.api_url`: not a URL", "write http://… or https://…")
    for index, url in enumerate(settings.alertmanager.urls):
        if not _web_url(url):
            path: Keys = ("alertmanager", "urls", index)
            yield Mismatch(path, f"`alertmanager.urls[{index}]`: not a URL", "write http://… or https://…")
    seen: dict[str, int] = {}
    for index, server in enumerate(settings.servers):
        if server.name in seen:
            path = ("servers", index, "name")
            yield Mismatch(path, f"two servers are named `{server.name}`", "give each server its own name")
        seen[server.name] = index
        yield from _server(server, ("servers", index))


def _server(server: Server, path: Keys) -> Iterator[Mismatch]:
    if server.url is None and server.run_dir is None:
        yield Mismatch(path, f"`{dotted(path)}`: neither url nor run_dir", "say where the server is: add `url`")
    if server.url is not None and not (_web_url(server.url) or re.match(r"unix:///.", server.url)):
        yield Mismatch(
            (*path, "url"),
            f"`{dotted((*path, 'url'))}`: not a URL",
            "write http://HOST:PORT, https://… or unix:///…",
        )
    if server.root_path is not None and not server.root_path.startswith("/"):
        yield Mismatch((*path, "root_path"), f"`{dotted((*path, 'root_path'))}`: must begin with /", "write /prefix")


def _web_url(text: str) -> bool:
    return re.match(r"https?://[^\s/]+", text) is not None and not re.search(r"\s", text)


def _address_problem(text: str) -> str | None:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        return "no port in it" if not colon else "no host in it"
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        return "the port is not a number from 0 to 65535"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "an IPv6 address needs brackets"
    return None
