"""Starts the stand-in as a process, talks HTTP to it and reads its log; used by every test of this folder."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "data" / "captures"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Standin:
    """One server process; its stdout and stderr together in ``log``."""

    def __init__(self, *args: str, env: dict[str, str] | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        command = [sys.executable, "-m", "agent.sim", "--host", "127.0.0.1", "--port", str(self.port), *args]
        self.process = subprocess.Popen(command, stdout=self._file, stderr=subprocess.STDOUT, env=environ)

    def __enter__(self) -> Standin:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._file.close()

    @property
    def log(self) -> str:
        self._file.seek(0)
        return self._file.read().decode()

    def ready(self, timeout: float = 20) -> Standin:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"exited {self.process.returncode} before it was ready:\n{self.log}")
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"not ready:\n{self.log}")

    def exit(self, timeout: float = 20) -> int:
        return self.process.wait(timeout)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        timeout: float = 20,
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if isinstance(body, str | bytes | None) else json.dumps(body)
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        return self.request("GET", path)

    def complete(self, tokens: int = 5, prompt: str = "hello world", **body: object) -> tuple[int, str]:
        return self.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": tokens, **body})

    def burst(self, count: int, tokens: int = 20, prompt: str = "hello", **body: object) -> list[tuple[int, str]]:
        """``count`` requests at once; (0, "") for one whose connection broke."""
        answers: list[tuple[int, str]] = [(0, "")] * count

        def one(index: int) -> None:
            try:
                answers[index] = self.complete(tokens, prompt, **body)
            except (OSError, http.client.HTTPException):
                answers[index] = (0, "")

        threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return answers

    def metric(self, name: str, labels: str = "") -> float:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name) and labels in line and line[len(name)] in "{ ":
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no {name}")

    def engine(self) -> int:
        """The process id of the engine, by its title in the process table."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                ppid = int(stat.read_text().rsplit(")", 1)[1].split()[1])
                title = (stat.parent / "cmdline").read_bytes().split(b"\0")[0]
            except (OSError, IndexError):
                continue
            if ppid == self.process.pid and title == b"VLLM::EngineCore":
                return int(stat.parent.name)
        raise AssertionError("no VLLM::EngineCore")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.exit()
