"""A real Prometheus 3 scrapes the same answers; the store must hold the same samples at the same times."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.series import LOOKBACK_MS, Labels, Selection, Store, is_stale, labels_of
from tests.support.processes import free_port
from tests.support.prometheus import program

CAPTURES = sorted((Path(__file__).parents[1] / "data/captures/metrics").glob("*.prom"))
# Measured by each side for itself, and a count of Prometheus' own cache.
OWN = ("scrape_duration_seconds", "scrape_series_added")


def answers(start_ms: int) -> list[str | None]:
    """Label clashes, escapes, quoted names, duplicates, times of its own, resets, failures, and real answers."""
    return [
        'a{x="1",job="j"} 1\nb{instance="i",exported_instance="k"} 2\nc 3\n# TYPE d counter\nd_total 5\ne{x=""} 1\n'
        'q{x="a b\\n\\"c\\\\"} 1\n{"dot.ted",y="z"} 4\n',
        f'a{{x="1",job="j"}} 2\nc 4\nc 5\nc{{x="q"}} NaN\nd_total 6\nnewer 1 {start_ms + 500}\n',
        f'a{{job="j",x="1"}} 3\na{{x="1",job="j"}} 33\nd_total 2\nnewer 2 {start_ms + 700}\n'
        f"far 1 {start_ms + 3_600_000}\nold 1 {start_ms - 8_000_000}\n",
        None,
        f'a{{x="1",job="j"}} 4\nnewer 1 {start_ms + 600}\nd_total 7\nc +Inf\n',
        f'a{{x="1",job="j"}} 4\nnewer 9 {start_ms + 900}\nd_total 7 {start_ms + 950}\nc -Inf\n',
        "<html>x</html>",
        'a{x="1",job="j"} 5\nd_total 8\n',
        "",
        *(path.read_text() for path in CAPTURES[:6]),
    ]


class Answering:
    """Gives one answer after the other, None as a 500; the last again and again."""

    def __init__(self, bodies: list[str | None]) -> None:
        given = self.given = []  # type: list[int]

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = bodies[min(len(given), len(bodies) - 1)]
                given.append(1)
                data = (body or "").encode()
                self.send_response(500 if body is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"


class Prometheus:
    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1/query?"

    def query(self, text: str, at_ms: int) -> dict[Labels, list[tuple[int, float]]]:
        url = self._base + urllib.parse.urlencode({"query": text, "time": at_ms / 1000})
        with urllib.request.urlopen(url) as response:
            result = json.load(response)["data"]["result"]
        return {
            labels_of(one["metric"]): [
                (round(float(at) * 1000), float(value)) for at, value in one.get("values") or [one["value"]]
            ]
            for one in result
            if one["metric"]["__name__"] not in OWN
        }


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[Answering, list[str | None], Prometheus]]:
    binary = program("prometheus", "3")
    bodies = answers(int(time.time() * 1000))
    target = Answering(bodies)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
        f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ['{target.address}']}}]}}]\n"
    )
    port = free_port()
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=(tmp_path / "log").open("w")
    )
    try:
        deadline = time.monotonic() + 40
        while len(target.given) <= len(bodies) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(target.given) > len(bodies), (tmp_path / "log").read_text()[-2000:]
        yield target, bodies, Prometheus(port)
    finally:
        process.terminate()
        process.wait(20)
        target.server.shutdown()


def test_the_same_samples_at_the_same_times(real: tuple[Answering, list[str | None], Prometheus]) -> None:
    target, bodies, prometheus = real
    ((_, ups),) = prometheus.query("up[5m]", int(time.time() * 1000)).items()
    moments = [at for at, _ in ups][: len(bodies)]
    store = Store(Selection.all(600_000), target={"job": "vllm", "instance": target.address})
    for at_ms, body in zip(moments, bodies, strict=True):
        if body is None:
            store.failed(at_ms=at_ms, seconds=0.1)
        else:
            store.scraped(body.encode(), "text/plain", at_ms=at_ms, seconds=0.1)
    everything = prometheus.query('{__name__=~".+"}[5m]', moments[-1])
    assert len(everything) > 500
    assert {labels: [(at, repr(value)) for at, value in samples] for labels, samples in everything.items()} == {
        series.labels: kept
        for series in store
        if (kept := living(series.times, series.values, moments[-1]))
        if dict(series.labels)["__name__"] not in OWN
    }
    for at_ms in (moment + 20 for moment in moments):
        assert set(prometheus.query('{__name__=~".+"}', at_ms)) == set(present(store, at_ms))


def living(times: object, values: object, end_ms: int) -> list[tuple[int, str]]:
    pairs = zip(times, values, strict=True)  # type: ignore[call-overload]
    return [(at, repr(value)) for at, value in pairs if not is_stale(value) and at <= end_ms]


def present(store: Store, at_ms: int) -> Iterator[Labels]:
    for series in store:
        place = bisect_right(series.times, at_ms) - 1
        seen = place >= 0 and series.times[place] > at_ms - LOOKBACK_MS and not is_stale(series.values[place])
        if seen and dict(series.labels)["__name__"] not in OWN:
            yield series.labels
