"""What a command line says about the server: where it listens, whether flags can be appended, its identity.

In: the operator's argument list (after ``--``). Out: plain values. Never starts anything and never imports
vLLM (its parser takes 7 s to import); a repeated flag counts with its last value, as in vLLM.

``bash -c "…"`` is read for its address, but flags cannot be appended to it: they would become the shell's
positional arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PORT = 8000
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
VLLM_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main", "vllm")
STAND_IN_MODULES = ("agent", "agent.sim")
_PYTHON = re.compile(r"^(python|pypy)[0-9.]*$")
_YAML_SCALAR = re.compile(r"^([A-Za-z_-]+)\s*:\s*['\"]?([^'\"#\s]+)")


@dataclass(frozen=True)
class Address:
    """Where the server answers. ``uds`` wins over host and port; ``headless`` has no HTTP server at all."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    uds: str | None = None
    tls: bool = False
    root_path: str = ""
    headless: bool = False

    @property
    def url(self) -> str:
        """Base URL for a client on this machine; ``unix:PATH`` for a unix socket."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def words(argv: Sequence[str]) -> list[str]:
    """The words that matter: those inside ``sh -c "…"`` where the command is a shell, else the list
    itself.
    """
    if argv and Path(argv[0]).name in SHELLS:
        for index, token in enumerate(argv[1:], start=1):
            if re.match(r"^-[a-z]*c[a-z]*$", token) and index + 1 < len(argv):
                return _split(argv[index + 1]) + list(argv[index + 2 :])
    return list(argv)


def _split(script: str) -> list[str]:
    try:
        return shlex.split(script, comments=True)
    except ValueError:
        return script.split()


def flag_value(argv: Sequence[str], name: str) -> str | None:
    """The last value of ``name`` in ``argv`` (``--x v`` or ``--x=v``; dash and underscore are the same)."""
    wanted = name.replace("_", "-")
    found: str | None = None
    for index, token in enumerate(argv):
        head, has_value, tail = token.partition("=")
        if head.replace("_", "-") != wanted or not token.startswith("-"):
            continue
        if has_value:
            found = tail
        elif index + 1 < len(argv):
            found = argv[index + 1]
    return found


def has_flag(argv: Sequence[str], name: str) -> bool:
    """Whether ``name`` is there at all."""
    return any(token.partition("=")[0].replace("_", "-") == name for token in argv)


def server_api_key(argv: Sequence[str]) -> str | None:
    """The first key of ``--api-key`` (it takes many), for a client that must reach this server's /v1 paths."""
    value = flag_value(words(argv), "--api-key")
    return value if value and not value.startswith("-") else None


def server_address(argv: Sequence[str]) -> Address:
    """Where this command's server will answer on this machine; vLLM's defaults where nothing is said.

    Command line wins over ``--config FILE`` (vLLM's YAML), of which only top-level scalars are read.
    """
    tokens = words(argv)
    config = _yaml_scalars(flag_value(tokens, "--config"))

    def value(flag: str) -> str | None:
        said = flag_value(tokens, flag)
        return said if said is not None else config.get(flag.lstrip("-"))

    return Address(
        host=_local(value("--host")),
        port=_port(value("--port")),
        uds=value("--uds"),
        tls=value("--ssl-certfile") is not None,
        root_path=(value("--root-path") or "").rstrip("/"),
        headless=has_flag(tokens, "--headless"),
    )


def _local(host: str | None) -> str:
    if host in (None, "", "0.0.0.0", "localhost"):
        return "127.0.0.1"
    assert host is not None
    host = host.strip("[]")
    return "::1" if host == "::" else host


def _port(text: str | None) -> int:
    try:
        port = int(text) if text is not None else DEFAULT_PORT
    except ValueError:
        return DEFAULT_PORT
    return port if 0 < port < 65536 else DEFAULT_PORT


def _yaml_scalars(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    matches = (_YAML_SCALAR.match(line) for line in lines)
    return {match[1].replace("_", "-"): match[2] for match in matches if match}


def can_append_flags(argv: Sequence[str]) -> bool:
    """Whether words put at the end of ``argv`` reach vLLM's own parser.

    True for ``vllm serve …``, ``python -m vllm.entrypoints…`` and the stand-in, also behind wrappers that run
    the rest of their line (``env``, ``nice``, ``numactl`` …); false for shells and for unknown scripts.
    """
    if not argv or Path(argv[0]).name in SHELLS:
        return False
    for index, token in enumerate(argv):
        name = Path(token).name
        following = argv[index + 1] if index + 1 < len(argv) else ""
        if name == "vllm" and following == "serve":
            return True
        if name == "agent" and following == "sim":
            return True
        if token == "-m" and following in VLLM_MODULES + STAND_IN_MODULES:
            return True
    return False


def interpreter_words(argv: Sequence[str]) -> tuple[str | None, str | None]:
    """``(python, script)``: the word that is a Python interpreter, and the ``vllm`` script, if either
    is there.
    """
    python = script = None
    for token in words(argv):
        name = Path(token).name
        if python is None and _PYTHON.match(name):
            python = token
        if script is None and name in ("vllm", "agent") and not token.startswith("-"):
            script = token
    return python, script


def command_sha256(argv: Sequence[str]) -> str:
    """Identity of the operator's command: SHA-256 over its JSON."""
    return hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()


def without_flags(argv: Sequence[str], names: Sequence[str], boolean: frozenset[str]) -> list[str]:
    """``argv`` without the flags ``names`` and their values; ``boolean`` are those that take none."""
    kept: list[str] = []
    skip_value = False
    for token in argv:
        if skip_value:
            skip_value = False
            if not token.startswith("--"):
                continue
        head, has_value, _ = token.partition("=")
        if head.startswith("--") and head.replace("_", "-") in names:
            skip_value = not has_value and head.replace("_", "-") not in boolean
            continue
        kept.append(token)
    return kept
