"""The page of the metrics, made from ``agent/metrics.yaml``: ``python -m tests.documentation.metrics_page``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from agent.series import OwnMetric, own_metrics

HEAD = """# Metrics of the agent

`GET /metrics` on `--listen` (default 127.0.0.1:9911), text or OpenMetrics by the `Accept` header:

```sh run
curl -s http://127.0.0.1:9911/metrics | grep '^vllm_agent_server_state.* 1.0'
```

Base units; counters end in `_total`, a histogram has `_bucket`, `_sum` and `_count`. Labels are bounded: never an id,
a pid or a text. A series appears with its first event or reading, and goes when its card, engine or alert is gone;
`vllm_agent_server_state` always has all nine states. This page and the code are made from `agent/metrics.yaml`.

Worth a page of their own: `vllm_agent_breaker_open == 1`, `vllm_agent_frozen == 1` for longer than you meant,
`vllm_agent_journal_healthy == 0`, `vllm_agent_scrape_age_seconds > 60` while the state is `serving`.

`process_*` are the watcher's own, as in any Prometheus client. vLLM's metrics are not passed on; scrape vLLM for them.
"""
SECTIONS = {
    "watcher": "\n## Servers, repairs, rules, and the agent itself\n\n",
    "gpu": "\n## Cards\n\nThe server's own cards alone. A reading that the driver does not give has no series.\n\n",
    "host": "\n## Host, container and the server's processes\n\n",
    "rules": "\n## Recorded by the rules\n\nIn the series of the judged server, not on the agent's `/metrics`.\n\n",
    "engine": "\n## Planned: from inside the engine\n\nThe names are settled; nothing exports them yet.\n\n",
}
TABLE = "| name | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n"


def page() -> str:
    """The text of ``docs/metrics.md``."""
    metrics = own_metrics().values()
    return HEAD + "".join(_section(head, (it for it in metrics if it.source == one)) for one, head in SECTIONS.items())


def _section(head: str, metrics: Iterable[OwnMetric]) -> str:
    return head + TABLE + "".join(_row(metric) for metric in metrics)


def _row(metric: OwnMetric) -> str:
    cells = (f"`{metric.name}`", metric.type, metric.unit, _code(metric.labels), "; ".join(_meaning(metric)))
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _meaning(metric: OwnMetric) -> Iterator[str]:
    text = metric.help.rstrip(".")
    yield f"[{text}]({metric.see})" if metric.see is not None else text
    for label, words in metric.values.items():
        # The states stand in a table of their own; a note that begins with the words explains them.
        if label != "state" and f"`{words[0]}` =" not in (metric.note or ""):
            yield _code(words)
    if metric.note is not None:
        yield metric.note


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    sys.stdout.write(page())
