"""The shipped rules load everywhere they are meant to, each is proven to fire and to keep still, and none is vague."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from agent.alerts import RUNBOOK_BASE, THRESHOLD, RuleSet, check_rules, load_rules, profiles
from agent.alerts.testfile import read_test_file
from agent.model import Severity
from agent.series import Match
from tests.rules.pack import ALERTS, PROFILES, ROOT, TESTS, each_prometheus, promtool, run
from tests.support.prometheus import program


@pytest.fixture(scope="module")
def pack() -> RuleSet:
    return load_rules(profile="guide-moe")


@each_prometheus
def test_promtool_takes_every_file(version: str) -> None:
    code, text = promtool(version, "check", "rules", *map(str, (*ALERTS, *PROFILES)))
    assert code == 0, text


@each_prometheus
@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_promtool_passes_every_unit_test(version: str, file: Path) -> None:
    code, text = promtool(version, "test", "rules", str(file))
    assert code == 0, text


def test_vmalert_takes_every_file() -> None:
    rules = [f"-rule={path}" for path in (*ALERTS, *PROFILES)]
    code, text = run(program("vmalert", "3"), "-dryRun", *rules)
    assert code == 0, text


@pytest.mark.parametrize("profile", profiles())
def test_the_agent_has_nothing_to_say_against_them(profile: str) -> None:
    assert [str(problem) for problem in check_rules(profile=profile)] == []


def test_the_two_guides_and_two_more_are_profiles_with_the_same_thresholds() -> None:
    assert set(profiles()) == {"guide-moe", "guide-high-throughput", "interactive", "batch"}
    names = {profile: _thresholds(load_rules(profile=profile)) for profile in profiles()}
    assert len({frozenset(numbers) for numbers in names.values()}) == 1


@pytest.mark.parametrize(
    ("profile", "numbers"),
    [
        (
            "guide-moe",
            {
                "ttft_p99_seconds": 0.5,
                "error_ratio": 0.005,
                "gpu_utilization_low_ratio": 0.7,
                "gpu_utilization_high_ratio": 0.85,
                "fragmentation_ratio": 0.15,
                "queue_length": 10,
                "e2e_p99_seconds": 30,
                "request_rate_drop_ratio": 0.3,
            },
        ),
        (
            "guide-high-throughput",
            {
                "ttft_p99_seconds": 0.15,
                "error_ratio": 0.001,
                "gpu_utilization_low_ratio": 0.75,
                "gpu_utilization_high_ratio": 0.85,
                "gpu_memory_ratio": 75 / 80,
                "unplanned_starts": 0,
                "e2e_p99_seconds": 30,
                "decode_tokens_per_second": 252,
                "request_rate_drop_ratio": 0.3,
            },
        ),
    ],
)
def test_a_guides_profile_has_the_guides_numbers(profile: str, numbers: dict[str, float]) -> None:
    found = _thresholds(load_rules(profile=profile))
    assert {name: found[name] for name in numbers} == numbers


def test_every_threshold_is_compared_with(pack: RuleSet) -> None:
    read = {one.fixed("name") for rule in pack.rules for one in rule.expression.selectors if one.name == THRESHOLD}
    assert read == set(_thresholds(pack))


def test_every_alert_says_who_is_told_what_it_means_and_where_to_read_on(pack: RuleSet) -> None:
    for rule in pack.rules:
        if rule.record:
            continue
        assert rule.severity in {severity.value for severity in Severity}, rule.where
        assert "{{" not in rule.annotations["summary"].text, (
            f"{rule.where}: the summary is fixed, the value is not in it"
        )
        assert "$labels" in rule.annotations["description"].text or "agent" in rule.annotations["description"].text
        assert rule.annotations["runbook_url"].text == f"{RUNBOOK_BASE}runbooks/{rule.name}"


def test_bands_drops_and_restarts_never_page(pack: RuleSet) -> None:
    quiet = {"VLLMGpuUnderused", "VLLMGpuSaturated", "VLLMGpuMemoryGrowing", "VLLMRequestRateDropped"}
    quiet |= {"VLLMServerRestarted", "VLLMClientErrorRatioHigh", "VLLMServerSaturated"}
    severities = {rule.name: rule.severity for rule in pack.rules if not rule.record}
    assert quiet <= set(severities)
    assert "critical" not in {severities[name] for name in quiet}
    assert severities["VLLMServerRestarted"] == "warning"


def test_every_alert_fires_in_one_case_and_keeps_still_beside_it(pack: RuleSet) -> None:
    fires: dict[str, int] = defaultdict(int)
    still: dict[str, int] = defaultdict(int)
    for file in TESTS:
        for group in read_test_file(file).groups:
            pods = {dict(labels).get("pod", dict(labels).get("instance")) for labels, _ in group.series}
            for case in group.alerts:
                told = {alert.labels.get("pod") for alert in case.expected}
                fires[case.alertname] += bool(told)
                still[case.alertname] += pods > told
    names = {rule.name for rule in pack.rules if not rule.record}
    assert {name for name in names if not fires[name]} == set()
    assert {name for name in names if not still[name]} == set()
    assert set(fires) <= names


def test_a_percentile_and_a_share_need_a_hundred_requests(pack: RuleSet) -> None:
    """The canary makes at most one request in ten seconds, thirty in the five minutes that these rules look at."""
    for rule in pack.rules:
        if not rule.record and ("histogram_quantile" in rule.text or "http_requests_total" in rule.text):
            assert ">= 100" in rule.text, rule.where


def test_every_series_of_the_agent_that_a_rule_reads_exists_with_its_labels_and_their_words(pack: RuleSet) -> None:
    metrics = {
        f"vllm_agent_{one['name']}": one for one in yaml.safe_load((ROOT / "agent" / "metrics.yaml").read_text())
    }
    for rule in pack.rules:
        for selector in rule.expression.selectors:
            if selector.name is None or not selector.name.startswith("vllm_agent_"):
                continue
            metric = metrics[selector.name]
            for matcher in selector.matchers:
                words = metric.get("values", {}).get(matcher.name)
                assert matcher.name in metric["labels"].split(), f"{rule.where}: {matcher.name}"
                if words and matcher.match is Match.EQUAL:
                    assert matcher.value in words.split(), f"{rule.where}: {matcher.value}"


def _thresholds(rules: RuleSet) -> dict[str, float]:
    made = [rule for rule in rules.rules if rule.name == THRESHOLD]
    return {rule.labels["name"].text: float(rule.text.split("*")[0]) for rule in made}
