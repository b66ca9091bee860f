"""The command line of ``agent launch``.

In: arguments; everything after ``--`` is the server's command. Out: the launcher's exit code (0 asked stop,
2 the server's usage error, 64 own usage, 70 gave up).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from agent import __version__
from agent.errors import AgentError, UsageError
from agent.launch.command import server_address
from agent.launch.launcher import fail, run
from agent.launch.rundir import default_run_dir
from agent.launch.settings import Settings, default_stop_timeout

DEFAULT_PROBE = ("127.0.0.1", 9912)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy="see `agent launch --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="agent launch",
        usage="agent launch [options] -- COMMAND…",
        description="Own one vLLM server: restart it, answer its probes, hold the hands that touch it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--run-dir",
        metavar="DIR",
        help="folder of this server (default: $VLLM_AGENT_RUN_DIR, /run/vllm-agent/default)",
    )
    add(
        "--probe",
        metavar="HOST:PORT",
        help="where /livez and /readyz answer (default 127.0.0.1:9912; off = none)",
    )
    add("--stop-timeout", type=float, metavar="S", help="seconds from SIGTERM to SIGKILL (default 25)")
    add(
        "--gpu-wait",
        type=float,
        default=30.0,
        metavar="S",
        help="longest wait for GPU memory before a restart",
    )
    add(
        "--allow-uid",
        type=int,
        action="append",
        default=[],
        metavar="UID",
        help="user that may use the socket and own the run-dir",
    )
    add(
        "--allow-gid",
        type=int,
        action="append",
        default=[],
        metavar="GID",
        help="group that may use the socket",
    )
    add("--watcher", metavar="JSON", help="argument list of a watcher to keep alive beside the server")
    add("--version", action="version", version=__version__)
    return parser


def parse(argv: Sequence[str]) -> Settings:
    """Raises UsageError."""
    argv = list(argv)
    if "--" in argv:
        cut = argv.index("--")
        own, command = argv[:cut], argv[cut + 1 :]
    else:
        own, command = argv, []
    options = _parser().parse_args(own)
    if not command:
        raise UsageError("no command", remedy="put it after --, as in `agent launch -- vllm serve MODEL`")
    env = dict(os.environ)
    if shutil.which(command[0], path=env.get("PATH")) is None:
        raise UsageError(f"{command[0]!r} is not a program on the PATH", remedy="name it with its full path")
    for name in ("stop_timeout", "gpu_wait"):
        value = getattr(options, name)
        if value is not None and not 0 <= value <= 86400:
            raise UsageError(f"--{name.replace('_', '-')} {value:g} is no duration", remedy="use 0 to 86400 seconds")
    stop_timeout = options.stop_timeout
    address = server_address(command)
    return Settings(
        argv=tuple(command),
        env=env,
        run_dir=Path(options.run_dir).absolute() if options.run_dir else default_run_dir().absolute(),
        address=replace(address, host=_numeric(address.host)),
        probe=_probe(options.probe),
        probe_required=options.probe is not None,
        stop_timeout=default_stop_timeout(tuple(command)) if stop_timeout is None else stop_timeout,
        gpu_wait=options.gpu_wait,
        allow_uids=frozenset(options.allow_uid),
        allow_gids=frozenset(options.allow_gid),
        watcher=_watcher(options.watcher),
        launch_id=os.urandom(8).hex(),
    )


def _probe(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return DEFAULT_PROBE
    if text == "off":
        return None
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"--probe {text!r} is no address", remedy="use HOST:PORT, as in 0.0.0.0:9912, or off")
    return _numeric(host.strip("[]") or "0.0.0.0"), int(port)


def _watcher(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UsageError("--watcher is no JSON list of words", remedy='use --watcher \'["agent", "watch"]\'')
    return tuple(words)


def _fill_standard_descriptors() -> None:
    """A caller may have closed 0, 1 or 2; the next file that is opened must not become our stdout."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.dup(descriptor)
    os.close(descriptor)


def _numeric(host: str) -> str:
    """An address instead of a name, looked up once: asyncio would use a thread for it at every connection."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host
    return str(found[0][4][0])


def main(argv: Sequence[str]) -> int:
    """``agent launch ARGV``; prints errors with their remedy, never a traceback for what a person can
    mend.
    """
    _fill_standard_descriptors()
    try:
        return run(parse(argv))
    except AgentError as error:
        return fail(error)
