"""``agent/metrics.yaml`` against the naming rules, and against what the code exports once it is touched."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.collect import CanaryOutcome
from agent.model import ActionState, Sample, State
from agent.series import OWN_PREFIX, OwnMetric, own_metrics
from agent.serve import AgentMetrics

ALLOWED = {
    *("model_name", "engine", "gpu", "uuid", "rule", "action", "outcome", "server", "reason", "class", "state"),
    *("name", "profile", "notifier"),
}
BASE_UNITS = {
    "seconds": "seconds", "bytes": "bytes", "ratio": "ratio", "celsius": "celsius", "watts": "watts",
    "joules": "joules", "hertz": "hertz", "bytes per second": "bytes_per_second",
}  # fmt: skip
SCALED = re.compile(r"_(milliseconds|ms|minutes|hours|kb|mb|gb|mib|gib|kilobytes|percent|perc|mhz|milliwatts|pct)(_|$)")
RULES = Path(__file__).parents[2] / "rules"
METRICS = list(own_metrics().values())
EXPORTED = [metric for metric in METRICS if metric.exported]


class Still:
    """A clock that stands."""

    def now(self) -> datetime:
        return datetime(2026, 11, 30, 12, tzinfo=timezone.utc)

    def monotonic(self) -> float:
        return 100.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def a_sample(metric: OwnMetric) -> Sample:
    """One that a collector could bring."""
    return Sample(metric.name, {label: metric.values.get(label, ("x",))[0] for label in metric.labels}, 1.0)


def touched() -> AgentMetrics:
    """Every method called, every brought metric brought."""
    metrics = AgentMetrics(Still(), strict=True)
    kept = {sample.name for sample in metrics.samples()}
    metrics.set_state("chat", State.SERVING)
    metrics.incident("chat", "oom-serving", "opened")
    metrics.set_incidents_open("chat", 1)
    metrics.action("chat", "restart", "verified")
    metrics.time_to_repair(30)
    metrics.time_to_open(0.1)
    metrics.scraped("chat", 0.01)
    metrics.log_read("chat", 10, 1)
    metrics.canary("chat", "0", "answered", 0.2)
    metrics.evaluated("chat", 0.001)
    metrics.notification("slack", "sent")
    metrics.set_notifications_pending("slack", 0)
    metrics.set_breaker("chat", False)
    metrics.set_override("chat", False)
    own = {sample.name for sample in metrics.samples()} | kept
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in own}
    metrics.bring("all", [a_sample(metric) for metric in EXPORTED if metric.name not in names])
    return metrics


# -- the code ------------------------------------------------------------------------------------------------


def test_the_exposition_has_every_name_that_is_not_planned_with_its_type_labels_and_help() -> None:
    text = generate_latest(touched().registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("process_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = (family.type, labels, family.documentation)
    wanted = {
        one.name: ("gauge" if one.type == "info" else one.type, set(one.labels), one.help)
        for one in EXPORTED
    }  # fmt: skip
    assert found == wanted


def test_every_series_is_there_once() -> None:
    text = generate_latest(touched().registry).decode()
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
    assert set(series.values()) == {1}
    types = Counter(line for line in text.splitlines() if line.startswith("# TYPE"))
    assert set(types.values()) == {1}


def test_planned_and_recorded_names_are_not_exported() -> None:
    names = {sample.name for sample in touched().samples()}
    hidden = [metric for metric in METRICS if not metric.exported]
    assert {metric.source for metric in hidden} == {"rules", "engine"}
    assert not names & {metric.name for metric in hidden}
    for metric in hidden:
        with pytest.raises(ValueError, match=metric.name):
            AgentMetrics(Still(), strict=True).bring("early", [a_sample(metric)])


def test_the_words_of_labels_are_those_of_the_code() -> None:
    metrics = own_metrics()
    states = {state.value for state in State}
    assert set(metrics["vllm_agent_server_state"].values["state"]) == states
    assert set(metrics["vllm_agent_engine_state"].values["state"]) == states
    outcomes = set(metrics["vllm_agent_actions_total"].values["outcome"])
    assert outcomes == {state.value for state in ActionState if state.final}
    canaries = set(metrics["vllm_agent_canary_requests_total"].values["outcome"])
    assert canaries == {outcome.value for outcome in CanaryOutcome}


# -- the names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_keeps_the_rules(metric: OwnMetric) -> None:
    assert re.fullmatch(r"vllm_agent_[a-z][a-z0-9_]*", metric.name) and "__" not in metric.name
    assert not SCALED.search(metric.name)
    assert metric.name.endswith("_total") is (metric.type == "counter")
    assert metric.name.endswith("_info") is (metric.type == "info")
    assert not metric.name.endswith(("_bucket", "_sum", "_count", "_created"))
    if metric.unit in BASE_UNITS:
        assert metric.name.removesuffix("_total").endswith(BASE_UNITS[metric.unit])
    else:
        assert not metric.name.removesuffix("_total").endswith(tuple(BASE_UNITS.values()))
    assert bool(metric.buckets) is (metric.type == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_labels_are_bounded_and_texts_are_sentences(metric: OwnMetric) -> None:
    assert set(metric.labels) <= (ALLOWED | {"version"} if metric.type == "info" else ALLOWED)
    assert len(set(metric.labels)) == len(metric.labels)
    assert set(metric.values) <= set(metric.labels)
    assert metric.help.endswith(".") and metric.help[0] in "1ABCDEFGHIJKLMNOPQRSTUVWXYZ0" and "\n" not in metric.help
    assert metric.unit or metric.type == "info"
    if metric.source in ("gpu", "host", "engine"):
        assert metric.labels[0] == "server"
    if metric.source == "gpu":
        assert metric.labels[:3] == ("server", "gpu", "uuid")


@pytest.mark.parametrize("path", sorted(RULES.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_rules_name_published_metrics_alone(path: Path) -> None:
    series = {one.name + part for one in METRICS for part in ("", "_bucket", "_sum", "_count")}
    named = set(re.findall(r"\bvllm_agent_[a-z_]+\b(?!:)", path.read_text(encoding="utf-8")))
    assert named <= series


def test_every_name_begins_alike_and_stands_once() -> None:
    assert all(name.startswith(OWN_PREFIX) for name in own_metrics())
    bare = Counter(name.removesuffix("_total").removesuffix("_info") for name in own_metrics())
    assert set(bare.values()) == {1}


def test_a_card_and_a_server_stay_within_their_series() -> None:
    """At most 45 a card and 150 a server, with the words that a label can have (7 reasons of the clocks, 3 Xids)."""
    wide = {"reason": 7, "name": 3}

    def count(metric: OwnMetric, fixed: set[str]) -> int:
        number = len(metric.buckets) + 3 if metric.type == "histogram" else 1
        for label in set(metric.labels) - fixed:
            number *= len(metric.values[label]) if label in metric.values else wide.get(label, 1)
        return number

    card = sum(count(metric, {"server", "gpu", "uuid"}) for metric in EXPORTED if metric.source == "gpu")
    server = [metric for metric in EXPORTED if metric.source != "gpu" and "server" in metric.labels]
    assert 35 <= card <= 45
    assert 60 <= sum(count(metric, {"server"}) for metric in server) <= 150
