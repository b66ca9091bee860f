"""A target of about 1,500 series that all move at every scrape, with one gauge that is set from outside.

In: ``python alerting_target.py PORT``; ``GET /set?value=V`` sets the gauge ``vllm:num_requests_waiting`` of engine 0.
Out: ``GET /metrics`` (14 histograms of 4 engines and 140 gauges, 115 kB), 200 on ``/health``, 404 on the rest. The
answer is made before it is asked for, so that a scrape waits for nothing.
"""

from __future__ import annotations

import itertools
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ENGINES, GAUGES, BUCKETS = 4, 140, 21
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds", "vllm:request_inference_time_seconds", "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total", "vllm:request_params_n", "vllm:request_params_max_tokens",
    "vllm:request_max_num_generation_tokens", "vllm:request_time_per_output_token_seconds",
)  # fmt: skip


class Body:
    """The exposition, newly made after each scrape."""

    def __init__(self) -> None:
        self.waiting = 0.0
        self._count = itertools.count(1)
        self._lock = threading.Lock()

    def text(self) -> bytes:
        with self._lock:
            return self._make(next(self._count)).encode()

    def _make(self, turn: int) -> str:
        lines: list[str] = []
        for name in HISTOGRAMS:
            lines.append(f"# TYPE {name} histogram")
            for engine in range(ENGINES):
                labels = f'engine="{engine}",model_name="m"'
                lines += [
                    f'{name}_bucket{{{labels},le="{0.001 * 2**i:g}"}} {turn * (i + 1):.1f}' for i in range(BUCKETS)
                ]
                lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {turn * (BUCKETS + 1):.1f}')
                lines.append(f"{name}_sum{{{labels}}} {turn * 0.5:.3f}")
                lines.append(f"{name}_count{{{labels}}} {turn * (BUCKETS + 1):.1f}")
        for engine in range(ENGINES):
            labels = f'engine="{engine}",model_name="m"'
            lines.append(f"vllm:num_requests_running{{{labels}}} {3 + turn % 2}")
            lines.append(f"vllm:num_requests_waiting{{{labels}}} {self.waiting if engine == 0 else 0}")
            lines.append(f"vllm:kv_cache_usage_perc{{{labels}}} 0.{turn % 8 + 1}")
            lines.append(f"vllm:generation_tokens_total{{{labels}}} {turn * 100}")
            lines.append(f"vllm:prompt_tokens_total{{{labels}}} {turn * 40}")
        lines += [f"other_gauge_{number} {turn % 97}" for number in range(GAUGES)]
        return "\n".join(lines) + "\n"


def serve(port: int) -> None:
    """Until killed."""
    body = Body()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path == "/set":
                body.waiting = float(parse_qs(address.query)["value"][0])
            answers = {"/metrics": body.text, "/health": bytes, "/set": bytes}
            found = answers.get(address.path)
            content = found() if found else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
