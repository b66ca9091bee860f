"""A real Prometheus 3 with the same samples at the same times, and what every rule's expression gives there.

In: stored samples. Out: the vectors of an expression at every evaluation. The samples come by remote write, since it
carries staleness markers as they are, which no text format does; they are encoded here: a protobuf of few fields in
a snappy block of one literal.
"""

from __future__ import annotations

import json
import struct
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.series import Labels
from tests.differential.samples import Stored
from tests.support.processes import free_port

WINDOW_MS = 1_800_000
"""Samples of half an hour at a time: Prometheus takes none that are an hour older than its newest."""


class Prometheus:
    """One that runs, empty at first."""

    def __init__(self, url: str) -> None:
        self._url = url

    def version(self) -> str:
        data = self._get("/api/v1/status/buildinfo", {})
        assert isinstance(data, dict)
        return str(data["version"])

    def write(self, stored: Stored) -> int:
        """All samples, oldest first; how many they are."""
        windows: dict[int, list[bytes]] = defaultdict(list)
        count = 0
        for labels, samples in stored.items():
            head = b"".join(
                _field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in sorted(labels)
            )
            parts: dict[int, list[bytes]] = defaultdict(list)
            for at_ms in sorted(samples):
                sample = b"\x09" + struct.pack("<d", samples[at_ms]) + b"\x10" + _varint(at_ms)
                parts[at_ms // WINDOW_MS].append(_field(2, sample))
                count += 1
            for window, encoded in parts.items():
                windows[window].append(_field(1, head + b"".join(encoded)))
        for window in sorted(windows):
            self._post(b"".join(windows[window]))
        return count

    def _post(self, message: bytes) -> None:
        literal = b"\xfc" + struct.pack("<I", len(message) - 1) + message
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        request = urllib.request.Request(f"{self._url}/api/v1/write", _varint(len(message)) + literal, headers)
        with urllib.request.urlopen(request, timeout=60):
            pass

    def vectors(self, expression: str, start_ms: int, end_ms: int, step_ms: int) -> dict[int, dict[Labels, float]]:
        """What the expression gives at each step."""
        asked = {"query": expression, "start": start_ms / 1000, "end": end_ms / 1000, "step": step_ms / 1000}
        data = self._get("/api/v1/query_range", {name: str(value) for name, value in asked.items()})
        assert isinstance(data, dict)
        found: dict[int, dict[Labels, float]] = defaultdict(dict)
        for series in data["result"]:
            labels = tuple(sorted(series["metric"].items()))
            for seconds, value in series["values"]:
                found[round(seconds * 1000)][labels] = float(value)
        return found

    def _get(self, path: str, asked: dict[str, str]) -> object:
        body = urllib.parse.urlencode(asked).encode() if asked else None
        try:
            with urllib.request.urlopen(f"{self._url}{path}", body, timeout=120) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {asked}: {error.read().decode()}") from error


@contextmanager
def prometheus(program: str, folder: Path) -> Iterator[Prometheus]:
    """Started in an empty folder, ended afterwards."""
    folder.mkdir()
    (folder / "empty.yml").write_text("{}\n")
    port = free_port()
    flags = ["--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{port}"]
    flags += [f"--config.file={folder / 'empty.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    flags += ["--storage.tsdb.retention.time=3y", "--query.max-concurrency=2"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen([program, *flags], stdout=log, stderr=log)
        try:
            _wait(f"http://127.0.0.1:{port}/-/ready", running)
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            running.terminate()
            running.wait(60)


def _wait(url: str, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert running.poll() is None, "Prometheus has ended; see its log"
            assert time.monotonic() < until, "Prometheus is not ready"
            time.sleep(0.1)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content
