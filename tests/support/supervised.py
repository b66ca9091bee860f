"""The agent as a black box around a server: started as a command, read through its HTTP interface and its
files.

In: the server's command and what the agent needs. Out: its state, its incidents, the exit records. It never
imports the agent, so the demo, the tests and the benchmarks exercise what a user runs. Every wait has a
limit and says what it waited for, with the ends of both logs, because a wait that only says "timeout" costs
an hour.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.support.processes import Process, free_port, subtree, titled

Json = dict[str, Any]
Result = TypeVar("Result")
POLL_SECONDS = 0.1
# A request to loopback must never go through a proxy that the environment names.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Waited(AssertionError):
    """A wait ended without what was waited for."""


def agent_command() -> list[str]:
    """How the agent is started: as a module of this interpreter, so that no script on PATH is needed."""
    return [sys.executable, "-m", "agent"]


def fetch(url: str, seconds: float = 5.0) -> bytes:
    """GET a loopback URL; raises OSError where nobody answers or the status is no success."""
    with OPENER.open(url, timeout=seconds) as answer:
        body: bytes = answer.read()
        return body


def wait_until(
    seconds: float,
    what: str,
    check: Callable[[], Result | None],
    *,
    context: Callable[[], str] = str,
    tick: Callable[[], None] | None = None,
) -> Result:
    """Poll ``check`` until it returns something true; raise :class:`Waited` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise Waited(f"waited {seconds:.0f} s for {what}\n{context()}")
        if tick:
            tick()
        time.sleep(POLL_SECONDS)


def tail(path: Path, size: int = 3000) -> str:
    """The end of a file, for a message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"({error})"


@dataclass
class Supervised:
    """One ``agent run`` (or ``agent launch`` where ``watcher`` is false) around ``command``.

    ``port`` is the server's; ``folder`` holds run-dir, state-dir and the output of both. ``environment`` is
    added to the caller's. ``settings`` becomes the configuration file.
    """

    folder: Path
    command: Sequence[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    watcher: bool = True
    stdout: int | None = None
    extra: Sequence[str] = ()
    listen: int = field(default_factory=free_port)
    probe: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    _family: list[Process] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def output(self) -> Path:
        """What the launcher passes on of the server's output, and its own words."""
        return self.folder / "output.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.listen}"

    def argv(self) -> list[str]:
        """The whole command line."""
        command = [*agent_command(), "run" if self.watcher else "launch"]
        command += ["--run-dir", str(self.run_dir), "--probe", f"127.0.0.1:{self.probe}"]
        if self.watcher:
            command += ["--listen", f"127.0.0.1:{self.listen}", "--state-dir", str(self.folder / "state")]
        if self.watcher and self.settings:
            config = self.folder / "agent.json"  # JSON is YAML
            config.write_text(json.dumps(self.settings), encoding="utf-8")
            command += ["--config", str(config)]
        return [*command, *self.extra, "--", *self.command]

    def start(self) -> Supervised:
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.environment}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self.argv(),
                stdin=subprocess.DEVNULL,
                stdout=self.stdout if self.stdout is not None else output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        return self

    def __enter__(self) -> Supervised:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        family = [*self._family, *subtree(self.process.pid)]
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for member in family:  # only what was started here, and only where the launcher failed to end it
            if member.alive():
                os.kill(member.pid, signal.SIGKILL)

    def remember(self) -> list[Process]:
        """The processes under the launcher now; they are ended with it even where the launcher is killed."""
        self._family = subtree(self.pid)
        return self._family

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def stop(self, seconds: float = 60.0) -> int:
        """End it as an operator does (SIGTERM) and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    # What it says

    def get(self, path: str) -> Json | None:
        """A JSON answer of the watcher; None where it does not answer."""
        try:
            answer: Json = json.loads(fetch(self.api + path))
            return answer
        except (OSError, ValueError):
            return None

    def status(self) -> Json | None:
        """The one server as ``/api/v1/status`` lists it."""
        answer = self.get("/api/v1/status")
        servers = answer.get("servers", []) if answer else []
        return servers[0] if servers else None

    def state(self) -> str | None:
        status = self.status()
        return status.get("state") if status else None

    def incidents(self) -> list[Json]:
        """All incidents, oldest first."""
        answer = self.get("/api/v1/incidents")
        found: list[Json] = answer.get("incidents", []) if answer else []
        return sorted(found, key=lambda incident: incident["opened_at"])

    def exits(self) -> list[Json]:
        """The launcher's exit records, oldest first."""
        try:
            lines = (self.run_dir / "exits.jsonl").read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.strip()]

    def health(self) -> bool:
        """Whether the server itself answers /health with success."""
        try:
            fetch(self.url + "/health", 2.0)
        except OSError:
            return False
        return True

    def probe_status(self, path: str) -> int | None:
        """The HTTP status of the launcher's probe; None where nobody listens."""
        try:
            with OPENER.open(f"http://127.0.0.1:{self.probe}{path}", timeout=3) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def verb(self, verb: str, **arguments: object) -> Json:
        """One verb on the launcher's socket, as any client speaks it; the whole answer line."""
        token = (self.run_dir / "token").read_text(encoding="utf-8").strip()
        line = json.dumps({"v": 1, "id": 1, "token": token, "verb": verb, "args": arguments}) + "\n"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.run_dir / "control.sock"))
            connection.sendall(line.encode())
            with connection.makefile("rb") as answers:
                answer: Json = json.loads(answers.readline())
                return answer

    # Whom it holds

    def engine(self) -> Process | None:
        """vLLM's EngineCore."""
        found = titled(self.pid, "VLLM::EngineCore")
        return found[0] if found else None

    def watcher_process(self) -> Process | None:
        """The brain: the descendant that runs ``agent watch``."""
        for process in subtree(self.pid):
            words = process.title.split()
            if "watch" in words and "agent" in " ".join(words[: words.index("watch")]):
                return process
        return None

    # What it is waited for

    def wait(self, seconds: float, what: str, check: Callable[[], Result | None]) -> Result:
        """:func:`wait_until` that fails at once when the launcher is gone, and shows where things stand."""

        def alive() -> None:
            if self.process is not None and self.process.poll() is not None:
                raise Waited(f"the launcher ended with {self.process.returncode} before {what}\n{self.picture()}")

        return wait_until(seconds, what, check, context=self.picture, tick=alive)

    def wait_healthy(self, seconds: float) -> None:
        self.wait(seconds, "the server's /health", self.health)

    def wait_state(self, state: str, seconds: float) -> None:
        self.wait(seconds, f"the state {state}", lambda: self.state() == state)

    def wait_exits(self, count: int, seconds: float = 60.0) -> Json:
        """The exit record number ``count`` (the first is 1)."""
        return self.wait(seconds, f"exit record {count}", lambda: self.exits()[count - 1 :])[0]

    def wait_incident(self, seconds: float, *, index: int = 0, states: Sequence[str] = ()) -> Json:
        """The incident number ``index``, once it is in one of ``states`` (any, where none is named)."""

        def check() -> Json | None:
            found = self.incidents()
            if len(found) > index and (not states or found[index]["state"] in states):
                return found[index]
            return None

        return self.wait(seconds, f"incident {index} in {list(states) or 'any state'}", check)

    def picture(self) -> str:
        """Everything a reader needs to see why a wait failed."""
        parts = [
            f"command: {' '.join(self.argv())}",
            f"status: {json.dumps(self.status())}",
            f"incidents: {json.dumps(self.incidents(), indent=1)}",
            f"exits: {json.dumps(self.exits())}",
            f"output:\n{tail(self.output)}",
        ]
        return "\n".join(parts)
