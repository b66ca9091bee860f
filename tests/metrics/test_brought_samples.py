"""Samples that others bring: replaced at once, refused where they do not fit, read back without text."""

from __future__ import annotations

import logging
import math

import pytest
from prometheus_client import generate_latest

from agent.model import Sample, State, SystemClock
from agent.serve import AgentMetrics

UP = "vllm_agent_gpu_up"


def up(uuid: str, value: float = 1.0, *, server: str = "chat", gpu: str = "0") -> Sample:
    return Sample(UP, {"server": server, "gpu": gpu, "uuid": uuid}, value)


def values(metrics: AgentMetrics, name: str) -> dict[str, float]:
    """By the last label."""
    return {list(one.labels.values())[-1]: one.value for one in metrics.samples() if one.name == name}


@pytest.fixture
def metrics() -> AgentMetrics:
    return AgentMetrics(SystemClock(), strict=True)


def test_a_source_replaces_all_that_it_brought_before(metrics: AgentMetrics) -> None:
    metrics.bring("gpu/chat", [up("a"), up("b", gpu="1")])
    metrics.bring("gpu/code", [up("c", server="code")])
    metrics.bring("gpu/chat", [up("a", 0.0)])
    assert values(metrics, UP) == {"a": 0.0, "c": 1.0}
    metrics.bring("gpu/chat", [])
    assert values(metrics, UP) == {"c": 1.0}
    text = generate_latest(metrics.registry).decode()
    assert text.count(f"{UP}{{") == 1 and text.count(f"# TYPE {UP} gauge") == 1


def test_a_series_that_two_sources_bring_is_exported_once_as_brought_last(metrics: AgentMetrics) -> None:
    metrics.bring("one", [up("a", 1.0)])
    metrics.bring("two", [up("a", 2.0)])
    assert values(metrics, UP) == {"a": 2.0}
    metrics.bring("one", [up("a", 3.0)])
    assert values(metrics, UP) == {"a": 3.0}
    assert generate_latest(metrics.registry).decode().count(f"{UP}{{") == 1
    metrics.bring("one", [up("b"), up("b", 0.0)])
    assert values(metrics, UP) == {"a": 2.0, "b": 0.0}


def test_the_order_of_labels_is_no_matter(metrics: AgentMetrics) -> None:
    metrics.bring("one", [up("a")])
    metrics.bring("two", [Sample(UP, {"uuid": "a", "gpu": "0", "server": "chat"}, 5.0)])
    assert [one.value for one in metrics.samples() if one.name == UP] == [5.0]


def test_counters_are_taken_as_they_are(metrics: AgentMetrics) -> None:
    name = "vllm_agent_gpu_energy_joules_total"
    labels = {"server": "chat", "gpu": "0", "uuid": "a"}
    metrics.bring("gpu", [Sample(name, labels, 1e9 + 0.5)])
    metrics.bring("gpu", [Sample(name, labels, 3.0)])  # the driver was loaded anew
    text = generate_latest(metrics.registry).decode()
    assert f'{name}{{gpu="0",server="chat",uuid="a"}} 3.0' in text
    assert "# TYPE vllm_agent_gpu_energy_joules_total counter" in text


WRONG = {
    "unknown name": Sample("vllm_agent_gpu_temperature_kelvin", {"server": "chat"}, 1.0),
    "planned": Sample("vllm_agent_engine_steps_total", {"server": "chat", "engine": "0"}, 1.0),
    "recorded by rules": Sample("vllm_agent_threshold", {"name": "x", "profile": "y"}, 1.0),
    "kept by a method": Sample("vllm_agent_frozen", {}, 1.0),
    "part of a histogram": Sample("vllm_agent_canary_seconds_count", {"server": "chat", "engine": "0"}, 1.0),
    "not the agent's": Sample("vllm:num_requests_running", {"engine": "0"}, 1.0),
    "label too few": Sample(UP, {"server": "chat", "gpu": "0"}, 1.0),
    "label too many": Sample(UP, {"server": "chat", "gpu": "0", "uuid": "a", "pid": "4"}, 1.0),
    "other label": Sample(UP, {"server": "chat", "gpu": "0", "pid": "4"}, 1.0),
}


@pytest.mark.parametrize("sample", WRONG.values(), ids=WRONG.keys())
def test_what_fits_no_published_metric_is_refused(sample: Sample, metrics: AgentMetrics) -> None:
    with pytest.raises(ValueError, match=sample.name):
        metrics.bring("gpu", [up("a"), sample])
    assert metrics.samples() == AgentMetrics(SystemClock()).samples()


def test_in_production_it_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = AgentMetrics(SystemClock())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            metrics.bring("gpu", [up("a"), *WRONG.values()])
    assert values(metrics, UP) == {"a": 1.0}
    assert len(caplog.records) == len({record.getMessage() for record in caplog.records}) == len(WRONG)
    before = generate_latest(metrics.registry).decode()
    assert "kelvin" not in before and before.count("vllm_agent_frozen ") == 3  # HELP, TYPE and its own value


def test_the_samples_are_those_of_the_exposition() -> None:
    metrics = AgentMetrics(SystemClock())
    metrics.set_state("chat", State.STALLED)
    metrics.canary("chat", "1", "answered", 0.3)
    metrics.canary("chat", "1", "timeout")
    metrics.evaluated("", 0.0004)
    metrics.bring("gpu", [up("a"), up("b", math.nan)])
    metrics.set_starts("chat", {"operator": 1, "restart": 2})
    read = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in metrics.samples()}
    assert len(read) == len(metrics.samples())
    for family in metrics.registry.collect():
        for one in family.samples:
            if not one.name.startswith("process_"):
                value = read.pop((one.name, tuple(sorted(one.labels.items()))))
                assert value == one.value or (math.isnan(value) and math.isnan(one.value))
    assert read == {}


def test_the_count_of_a_histogram_and_a_moment_are_read_too() -> None:
    metrics = AgentMetrics(SystemClock())
    metrics.canary("chat", "1", "answered", 0.3)
    metrics.evaluated("chat", 0.002)
    named = {one.name: one for one in metrics.samples() if one.labels.get("le") in (None, "0.5")}
    assert named["vllm_agent_canary_seconds_count"].value == 1
    assert named["vllm_agent_canary_seconds_bucket"].labels == {"server": "chat", "le": "0.5"}
    moment = named["vllm_agent_rule_last_evaluation_timestamp_seconds"].value
    assert abs(moment - SystemClock().now().timestamp()) < 60


def test_starts_are_set_whole() -> None:
    metrics = AgentMetrics(SystemClock(), strict=True)
    metrics.set_starts("chat", {"operator": 3, "planned": 0, "remedy": 0, "restart": 7})
    metrics.set_starts("chat", {"operator": 3, "planned": 0, "remedy": 0, "restart": 8})
    metrics.set_starts("code", {"operator": 1})
    name = "vllm_agent_server_starts_total"
    found = {(one.labels["server"], one.labels["reason"]): one.value for one in metrics.samples() if one.name == name}
    assert found[("chat", "restart")] == 8 and found[("chat", "operator")] == 3
    assert found[("code", "operator")] == 1
