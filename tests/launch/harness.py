"""A real launcher as a process, and short words to ask it things."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent.launch import LauncherClient

FAKE = Path(__file__).with_name("fake_server.py")
PATIENCE = 20.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def alive(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


class Launched:
    """One launcher process."""

    def __init__(self, run_dir: Path, process: subprocess.Popen[bytes], probe: int) -> None:
        self.run_dir = run_dir
        self.process = process
        self.probe = probe
        self.client = LauncherClient(run_dir)
        self.stderr_path = run_dir.parent / f"{run_dir.name}.stderr"

    async def up(self) -> None:
        async def answers() -> bool:
            with contextlib.suppress(Exception):
                await self.client.call("status")
                return True
            return False

        await self.wait_for(answers)

    async def wait_for(self, condition: Callable[[], Awaitable[object]], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not await condition():
            assert time.monotonic() < deadline, f"not in time; stderr: {self.stderr_path.read_text()[-2000:]}"
            await asyncio.sleep(0.03)

    async def event(self, kind: str, after: int = 0) -> dict[str, object]:
        """The first event of this kind numbered above ``after``."""
        await self.up()

        async def first() -> dict[str, object]:
            async for event in self.client.events(after):
                if event["kind"] == kind:
                    return event
            raise AssertionError("the stream ended")

        return await asyncio.wait_for(first(), PATIENCE)

    async def status(self) -> dict[str, object]:
        return await self.client.call("status")

    async def ready(self) -> dict[str, object]:
        return await self.event("ready")

    async def text(self) -> str:
        """What the server printed so far, from the log files."""
        files = sorted((self.run_dir / "log").glob("*.log"))
        return "".join(file.read_text() for file in files)

    def exits(self) -> list[dict[str, object]]:
        try:
            lines = (self.run_dir / "exits.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    async def ended(self, seconds: float = PATIENCE) -> int:
        await until(lambda: self.process.poll() is not None, seconds)
        return int(self.process.returncode)


class Factory:
    """Starts launchers and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Launched] = []

    def __call__(
        self,
        *server: str,
        run_dir: Path | None = None,
        options: tuple[str, ...] = (),
        command: list[str] | None = None,
        stdout: int | None = None,
        env: dict[str, str] | None = None,
        probe: bool = False,
    ) -> Launched:
        run_dir = run_dir or self._folder / "run"
        port = free_port() if probe else 0
        command = command or [sys.executable, str(FAKE), *server]
        argv = [sys.executable, "-m", "agent.launch", "--run-dir", str(run_dir), "--probe"]
        argv += [f"127.0.0.1:{port}" if probe else "off", *options, "--", *command]
        errors = (self._folder / f"{run_dir.name}.stderr").open("ab")
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL if stdout is None else stdout, stderr=errors,
            stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}, start_new_session=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        errors.close()
        launched = Launched(run_dir, process, port)
        self._started.append(launched)
        return launched

    def clean(self) -> None:
        for launched in self._started:
            if launched.process.poll() is None:
                launched.process.send_signal(signal.SIGKILL)
                launched.process.wait()
