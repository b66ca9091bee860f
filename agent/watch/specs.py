"""From the command line and the configuration to what is watched.

In: what ``agent watch`` was told, the file, the environment. Out: the settings with the command line on top, and one
:class:`ServerSpec` for each server. Everything that is wrong with them is said here, before anything starts.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent.config import Config, Server, load
from agent.errors import ConfigError, UsageError
from agent.watch.world import ServerSpec


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """What ``agent watch`` was told; everything but the server may come from the configuration."""

    config: Path | None = None
    run_dir: Path | None = None
    url: str | None = None
    logs: tuple[Path, ...] = ()
    listen: str | None = None
    state_dir: Path | None = None
    default_state_dir: Path | None = None
    name: str | None = None
    dry_run: bool = False


def settings_of(given: CommandLine, environ: Mapping[str, str]) -> Config:
    """The configuration with the command line on top. Raises ConfigError."""
    settings = load(given.config, environ)
    changes: dict[str, Any] = {}
    if given.listen is not None:
        changes["listen"] = given.listen
    default = Config().state_dir
    if given.state_dir is not None:
        changes["state_dir"] = str(given.state_dir)
    elif settings.state_dir == default and given.default_state_dir is not None:
        changes["state_dir"] = str(given.default_state_dir)
    if given.dry_run:
        changes["dry_run"] = True
    return msgspec.structs.replace(settings, **changes)


def specs_of(given: CommandLine, settings: Config, environ: Mapping[str, str]) -> tuple[ServerSpec, ...]:
    """The servers to watch: the command line's one, else the configuration's, else the run-dir of the environment.

    Raises UsageError and ConfigError for what can never be watched.
    """
    run_dir = given.run_dir
    if run_dir is None and given.url is None and not settings.servers and environ.get("VLLM_AGENT_RUN_DIR"):
        run_dir = Path(environ["VLLM_AGENT_RUN_DIR"])
    if run_dir is not None or given.url is not None:
        return (_of_command_line(given, run_dir, settings),)
    if not settings.servers:
        raise UsageError(
            "no server to watch was named",
            remedy="give --run-dir DIR (with `agent launch`), --url URL, or servers: in the configuration",
        )
    return tuple(_spec(server, settings) for server in settings.servers)


def _of_command_line(given: CommandLine, run_dir: Path | None, settings: Config) -> ServerSpec:
    """The one server of the command line; what it does not say may stand in the configuration under its name."""
    if run_dir is not None and given.logs:
        raise UsageError(
            "--log and --run-dir were both given", remedy="drop --log: the launcher of the run-dir gives the log"
        )
    name = given.name or (run_dir.name if run_dir is not None else "vllm")
    server = next((one for one in settings.servers if one.name == name), None)
    key = settings.api_key(name)
    return ServerSpec(
        name=name,
        run_dir=run_dir,
        url=_url(given.url, "--url") if given.url is not None else None,
        logs=given.logs,
        api_key=key.reveal() if key else None,
        tls_ca=_tls_ca(server) if server is not None else None,
        profile=server.profile if server is not None else None,
    )


def _spec(server: Server, settings: Config) -> ServerSpec:
    key = settings.api_key(server.name)
    return ServerSpec(
        name=server.name,
        run_dir=Path(server.run_dir) if server.run_dir else None,
        url=_with_root(server.url, server.root_path) if server.url else None,
        logs=tuple(Path(path) for path in server.log),
        api_key=key.reveal() if key else None,
        tls_ca=_tls_ca(server),
        profile=server.profile,
    )


def _with_root(url: str, root: str | None) -> str:
    """``http://host:port/root``; behind a unix socket the root follows a colon, as in ``unix:/path.sock:/root``."""
    root = f"/{root.strip('/')}" if root and root.strip("/") else ""
    if url.startswith("unix:"):
        return f"{url}:{root}" if root else url
    return url.rstrip("/") + root


def _url(text: str, where: str) -> str:
    """Raises UsageError for what is no address of a server."""
    remedy = "write http://HOST:PORT, https://HOST:PORT or unix:/PATH"
    if text.startswith("unix:"):
        if not text[len("unix:") :].startswith("/"):
            raise UsageError(f"{text!r} names no socket", where=where, remedy=remedy)
        return text
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"{text!r} is no address of a server", where=where, remedy=remedy)
    return text


def _tls_ca(server: Server) -> str | None:
    """Raises ConfigError where the file holds no certificate: every check would fail later, and say less."""
    if server.tls_ca is None:
        return None
    try:
        ssl.create_default_context(cafile=server.tls_ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"tls_ca of server `{server.name}` cannot be used: {reason}",
            where=server.tls_ca,
            remedy="name a readable PEM file with the CA's certificate",
        ) from None
    return server.tls_ca
