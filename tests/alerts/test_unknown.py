"""What could not be judged is said beside the state, with the reason; nothing that can be judged is called unknown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.alerts import Judge, OwnContract, RuleStatus, load_rules
from agent.series import Store, contract_for
from tests.alerts.given import rules_of, written

START = 1_700_000_000_000
TEXT = "text/plain; version=0.0.4"
IDLE = (
    'vllm:num_requests_running{model_name="m",engine="0"} 0\n'
    'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5\n'
    'vllm:generation_tokens_total{model_name="m",engine="0"} 7\n'
    'vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",le="0.3"} 1\n'
    'vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",le="1"} 1\n'
    'vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",le="+Inf"} 1\n'
)


def _statuses(
    folder: Path,
    rules: Sequence[str],
    bodies: Sequence[str | None],
    *,
    version: str | None = "0.32.0",
    rest: str = "",
) -> list[RuleStatus]:
    """Each expression as an alert, after scrapes with these bodies (None: one that failed)."""
    lines = "\n".join(f"  - {{alert: A{index}, expr: {_quoted(expr)}}}" for index, expr in enumerate(rules))
    ruleset = rules_of(folder, f"groups:\n- name: g\n  rules:\n{rest}\n{lines}\n").for_target("server")
    store = Store(ruleset.selection(), target={"job": "vllm", "instance": "a"})
    judge = Judge(ruleset, store, server="a", contract=contract_for(version))
    for index, body in enumerate(bodies):
        at = START + index * 1000
        if body is None:
            store.failed(at_ms=at, seconds=0.1)
        else:
            store.scraped(body.encode(), TEXT, at_ms=at, seconds=0.1)
        judge.evaluate(at)
    return [status for status in judge.statuses() if status.kind == "alert"]


def _quoted(expr: str) -> str:
    return '"' + expr.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.mark.parametrize(
    "expr",
    [
        "vllm:num_requests_running > 5",
        "rate(vllm:generation_tokens_total[1m]) > 5",
        "vllm:kv_cache_usage_perc > 0.9",
        'rate(http_requests_total{status="5xx"}[1m]) > 5',
        "up == 0",
        "vector(0) > 1",
        "absent(vllm:num_requests_running)",
        "vllm:kv_cache_usage_perc > 0.9 or vllm:gpu_cache_usage_perc > 0.9",
        "(vllm:gpu_cache_usage_perc or vllm:kv_cache_usage_perc) > 0.9",
    ],
)
def test_what_can_be_judged_is_not_unknown(tmp_path: Path, expr: str) -> None:
    (status,) = _statuses(tmp_path, [expr], [IDLE, IDLE])
    assert (status.state, status.unknown, status.not_judged) == ("inactive", None, ())


def test_a_family_without_an_event_yet_is_zero(tmp_path: Path) -> None:
    """vLLM exports ``http_requests_total`` from the first request on."""
    (status,) = _statuses(tmp_path, ['sum(rate(http_requests_total{status="5xx"}[1m])) > 0'], [IDLE, IDLE])
    assert status.unknown is None


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        ("vllm:gpu_cache_usage_perc > 0.9", "vLLM 0.32.0 has no vllm:gpu_cache_usage_perc"),
        ("vllm:num_requests_waiting > 5", "this server does not (--disable-log-stats?)"),
        ("vllm:no_such_thing > 5", "exports vllm:no_such_thing"),
        ("lmcache:hits > 5", "there is no series of lmcache:hits"),
        ("vllm:num_requests_running > 5 and vllm:gpu_cache_usage_perc > 1", "has no vllm:gpu_cache_usage_perc"),
        ("absent(vllm:gpu_cache_usage_perc)", "has no vllm:gpu_cache_usage_perc"),
        ("vllm:gpu_cache_usage_perc > 1 or vector(0) > 1", "has no vllm:gpu_cache_usage_perc"),
        ("vllm:gpu_cache_usage_perc > 1 or vllm:num_requests_swapped > 0", "vllm:num_requests_swapped"),
    ],
)
def test_a_family_that_is_not_there_is_unknown_with_the_reason(tmp_path: Path, expr: str, reason: str) -> None:
    (status,) = _statuses(tmp_path, [expr], [IDLE, IDLE])
    assert status.unknown is not None and reason in status.unknown


def test_one_branch_that_is_judged_is_enough_and_the_other_is_told(tmp_path: Path) -> None:
    expr = "vllm:num_requests_running > 5 or vllm:num_requests_swapped > 5"
    (status,) = _statuses(tmp_path, [expr], [IDLE, IDLE])
    assert status.unknown is None
    assert len(status.not_judged) == 1 and "vllm:num_requests_swapped" in status.not_judged[0]


def test_a_failing_scrape_makes_all_but_up_unknown(tmp_path: Path) -> None:
    expressions = ["vllm:num_requests_running > 5", "up == 0", "rate(vllm:generation_tokens_total[1m]) > 5"]
    gauge, up, rate = _statuses(tmp_path, expressions, [IDLE, IDLE, None])
    assert (gauge.state, gauge.unknown) == ("inactive", "the scrape fails")
    assert (up.state, up.unknown) == ("firing", None)
    assert (rate.state, rate.unknown) == ("inactive", "the scrape fails")


def test_before_the_first_scrape_everything_is_unknown(tmp_path: Path) -> None:
    ruleset = rules_of(tmp_path, "groups: [{name: g, rules: [{alert: A, expr: up == 0}]}]")
    judge = Judge(ruleset, Store(ruleset.selection(), target={"job": "vllm"}), server="a")
    assert judge.statuses()[0].unknown == "not evaluated yet"
    judge.evaluate(START)
    assert judge.statuses()[0].unknown == "not scraped yet"


def test_a_rate_needs_two_scrapes(tmp_path: Path) -> None:
    expressions = ["rate(vllm:generation_tokens_total[1m]) > 5", "max_over_time(vllm:num_requests_running[1m]) > 5"]
    rate, highest = _statuses(tmp_path, expressions, [IDLE])
    assert rate.unknown == "not yet: fewer than 2 scrapes in 1m"
    assert highest.unknown is None


def test_a_rate_is_unknown_again_after_scrapes_that_failed(tmp_path: Path) -> None:
    bodies = [IDLE, *[None] * 60, IDLE]
    (rate,) = _statuses(tmp_path, ["rate(vllm:generation_tokens_total[30s]) > 5"], bodies)
    assert rate.unknown == "not yet: fewer than 2 scrapes in 30s"


def test_what_is_unknown_of_a_recording_is_unknown_of_its_readers(tmp_path: Path) -> None:
    rest = (
        '  - {record: "r:kv", expr: "vllm:gpu_cache_usage_perc"}\n'
        '  - {record: vllm_agent_threshold, expr: "0.9 * vllm:gpu_cache_usage_perc", labels: {name: t, profile: p}}'
    )
    expressions = ["r:kv > 0.9", 'vllm:kv_cache_usage_perc > on () group_left () vllm_agent_threshold{name="t"}']
    for status in _statuses(tmp_path, expressions, [IDLE, IDLE], rest=rest):
        assert status.unknown is not None and "has no vllm:gpu_cache_usage_perc" in status.unknown


def test_a_recording_that_fails_says_so(tmp_path: Path) -> None:
    rest = '  - {record: "r:x", expr: "vllm:num_requests_running + on (model_name) vllm:num_requests_running"}'
    two = IDLE + 'vllm:num_requests_running{model_name="m",engine="1"} 0\n'
    (status,) = _statuses(tmp_path, ["r:x > 0.9"], [two, two], rest=rest)
    assert status.unknown is not None and status.unknown.startswith("r:x could not be recorded: ")


def test_a_threshold_below_the_lowest_bucket_cannot_be_measured(tmp_path: Path) -> None:
    quantile = "histogram_quantile(0.99, sum without (engine) (rate(vllm:e2e_request_latency_seconds_bucket[1m])))"
    rest = (
        '  - {record: vllm_agent_threshold, labels: {name: t, profile: p}, expr: "0.15 + 0 * up"}\n'
        f'  - {{record: "r:p99", expr: "{quantile}"}}'
    )
    expressions = [
        f"{quantile} > 0.15",
        f'{quantile} > on () group_left () vllm_agent_threshold{{name="t"}}',
        "r:p99 > 0.15",
        f"{quantile} > 0.3",
    ]
    *below, at_edge = _statuses(tmp_path, expressions, [IDLE, IDLE], rest=rest)
    for status in below:
        assert status.unknown == (
            "not measurable from the server: the threshold 0.15 lies below 0.3, "
            "the lowest bucket of vllm:e2e_request_latency_seconds"
        )
    assert at_edge.unknown is None


def test_a_quantile_far_above_such_a_threshold_is_certain(tmp_path: Path) -> None:
    quantile = "histogram_quantile(0.99, rate(vllm:e2e_request_latency_seconds_bucket[1m]))"
    slow = IDLE.replace('le="1"} 1', 'le="1"} 101').replace('le="+Inf"} 1', 'le="+Inf"} 101')
    (status,) = _statuses(tmp_path, [f"{quantile} > 0.15"], [IDLE, slow])
    assert (status.state, status.unknown) == ("firing", None)
    fast = slow.replace('le="0.3"} 1', 'le="0.3"} 101')
    (status,) = _statuses(tmp_path, [f"{quantile} > 0.15"], [IDLE, fast])
    assert status.state == "firing" and status.unknown is not None, "the value is made up within the lowest bucket"


def test_a_version_that_is_not_known_is_no_verdict(tmp_path: Path) -> None:
    (status,) = _statuses(tmp_path, ["vllm:num_requests_waiting > 5"], [IDLE, IDLE], version=None)
    assert status.unknown == "the version of vLLM is not known"
    (status,) = _statuses(tmp_path, ["vllm:num_requests_running > 5"], [IDLE, IDLE], version=None)
    assert status.unknown is None, "what the scrape brought is judged whatever the version"


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        ("vllm_agent_incidents_total > 1", None),
        ("vllm_agent_breaker_open > 0", None),
        ("rate(vllm_agent_gpu_xid_errors_total[5m]) > 0", "no GPU of the server is read here"),
        ("rate(vllm_agent_gpu_ecc_errors_total[5m]) > 0", "no GPU of the server is read here"),
        ("rate(vllm_agent_cgroup_oom_kills_total[5m]) > 0", "this host does not tell"),
        ("vllm_agent_gpu_temperature_celsius > 90", "no GPU of the server is read here"),
        (
            "vllm_agent_host_memory_available_bytes < 1",
            "this host does not tell vllm_agent_host_memory_available_bytes",
        ),
    ],
)
def test_what_the_agent_does_not_export_here_is_unknown(tmp_path: Path, expr: str, reason: str | None) -> None:
    path = written(tmp_path, f"groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]")
    ruleset = load_rules([path]).for_target("agent")
    judge = Judge(ruleset, Store(ruleset.selection()), server="a", contract=OwnContract())
    judge.evaluate(START)
    (status,) = judge.statuses()
    assert status.unknown is None if reason is None else reason in (status.unknown or "")


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        ("rate(vllm_agent_gpu_xid_errors_total[5m]) > 0", None),
        ("rate(vllm_agent_gpu_ecc_errors_total[5m]) > 0", "its driver does not tell vllm_agent_gpu_ecc_errors_total"),
    ],
)
def test_events_of_a_card_that_is_read_start_empty_and_what_its_driver_does_not_tell_is_unknown(
    tmp_path: Path, expr: str, reason: str | None
) -> None:
    path = written(tmp_path, f"groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]")
    ruleset = load_rules([path]).for_target("agent")
    contract = OwnContract()
    contract.see({"vllm_agent_gpu_up", "vllm_agent_server_state"})
    judge = Judge(ruleset, Store(ruleset.selection()), server="a", contract=contract)
    judge.evaluate(START)
    (status,) = judge.statuses()
    assert status.unknown is None if reason is None else reason in (status.unknown or "")
