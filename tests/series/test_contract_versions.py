"""One name asked of many versions; what a missing series means; names old and new."""

from __future__ import annotations

import pytest

from agent.series import contract
from agent.series.contract import PresenceKind, contract_for, version_range

EXPORTED, EMPTY, FEATURE, LACKING = (
    PresenceKind.EXPORTED,
    PresenceKind.STARTS_EMPTY,
    PresenceKind.NEEDS_FEATURE,
    PresenceKind.LACKING,
)


@pytest.mark.parametrize(
    ("name", "version", "kind"),
    [
        ("vllm:gpu_cache_usage_perc", "0.8.0", EXPORTED),
        ("vllm:gpu_cache_usage_perc", "0.10.2", EXPORTED),
        ("vllm:gpu_cache_usage_perc", "0.11.0", FEATURE),
        ("vllm:gpu_cache_usage_perc", "0.12.0", LACKING),
        ("vllm:kv_cache_usage_perc", "0.9.1", LACKING),
        ("vllm:kv_cache_usage_perc", "0.9.2", EXPORTED),
        ("vllm:gpu_prefix_cache_hits_total", "0.10.0", EXPORTED),
        ("vllm:prefix_cache_hits_total", "0.33.0", EXPORTED),
        ("vllm:time_per_output_token_seconds_bucket", "0.11.2", EXPORTED),
        ("vllm:time_per_output_token_seconds_bucket", "0.14.1", FEATURE),
        ("vllm:time_per_output_token_seconds_bucket", "0.15.0", LACKING),
        ("vllm:inter_token_latency_seconds_bucket", "0.10.1.1", LACKING),
        ("vllm:inter_token_latency_seconds_bucket", "0.10.2", EXPORTED),
        ("vllm:request_time_per_output_token_seconds_count", "0.10.2", LACKING),
        ("vllm:request_time_per_output_token_seconds_count", "0.11.0", EXPORTED),
        ("vllm:num_requests_swapped", "0.8.0", FEATURE),
        ("vllm:num_requests_swapped", "0.9.2", LACKING),
        ("vllm:avg_prompt_throughput_toks_per_s", "0.8.0", LACKING),
        ("vllm:num_requests_waiting_by_reason", "0.19.1", LACKING),
        ("vllm:num_requests_waiting_by_reason", "0.20.2", EXPORTED),
        ("vllm:prompt_tokens_recomputed_total", "0.19.1", EXPORTED),
        ("vllm:prompt_tokens_recomputed_total", "0.20.0", LACKING),
        ("vllm:admission_rejections_total", "0.31.0", LACKING),
        ("vllm:admission_rejections_total", "0.32.0", EXPORTED),
        ("vllm:corrupted_requests_total", "0.32.0", FEATURE),
        ("vllm:nixl_num_failed_transfers_total", "0.25.1", FEATURE),
        ("vllm:spec_decode_num_drafts_total", "0.8.4", LACKING),
        ("http_requests_total", "0.8.5", EMPTY),
        ("http_request_duration_seconds_bucket", "0.33.0", EMPTY),
        ("http_request_duration_highr_seconds_bucket", "0.33.0", EXPORTED),
        ("vllm:iteration_tokens_total_bucket", "0.32.0", EXPORTED),
        ("vllm:iteration_tokens_total", "0.32.0", EXPORTED),
        ("vllm:num_requests_runing", "0.32.0", LACKING),
        ("vllm:num_requests_running_bucket", "0.32.0", LACKING),
        ("up", "0.32.0", PresenceKind.FOREIGN),
        ("vllm_agent_gpu_up", "0.32.0", PresenceKind.FOREIGN),
        ("node_load1", None, PresenceKind.FOREIGN),
    ],
)
def test_what_a_missing_series_means(name: str, version: str | None, kind: PresenceKind) -> None:
    presence = contract_for(version).presence(name)
    assert presence.kind is kind
    assert bool(presence.reason) is (kind not in (EXPORTED, EMPTY, PresenceKind.FOREIGN))
    assert presence.is_zero is (kind is EMPTY)


@pytest.mark.parametrize("written", ["0.32.0+cpu", "v0.32.0", "0.32", "0.32.0.post1", "0.32.0rc2.dev3+gabc.cu130"])
def test_builds_of_a_release_have_its_table(written: str) -> None:
    table = contract_for(written)
    assert table.known
    assert table.presence("vllm:admission_rejections_total").kind is EXPORTED


@pytest.mark.parametrize("version", [None, "", "main", "0.7.3", "0.34.0", "1.0.0", "0.1.dev1+gabc"])
def test_a_version_that_is_not_in_the_tables_is_uncertain(version: str | None) -> None:
    table = contract_for(version)
    assert not table.known
    for name in ("vllm:num_requests_running", "http_requests_total", "vllm:nobody_knows_it"):
        presence = table.presence(name)
        assert presence.kind is PresenceKind.UNCERTAIN and not presence.is_zero
        assert (version or "not known") in presence.reason or "no version" in presence.reason
    assert {"vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"} <= table.families().keys()


def test_the_reason_names_the_version_and_the_other_name() -> None:
    new = contract_for("0.32.0").presence("vllm:gpu_cache_usage_perc").reason
    assert new == (
        "vLLM 0.32.0 has no vllm:gpu_cache_usage_perc: it ended with 0.11.2; here it is vllm:kv_cache_usage_perc"
    )
    old = contract_for("0.8.5.post1").presence("vllm:kv_cache_usage_perc").reason
    assert old.endswith("it came with 0.9.2; here it is vllm:gpu_cache_usage_perc")
    assert "--kv-cache-metrics" in contract_for("0.32.0").presence("vllm:kv_block_lifetime_seconds_sum").reason


def test_names_that_mean_the_same_are_found_from_both_sides() -> None:
    table = contract_for("0.32.0")
    assert table.aliases("vllm:gpu_cache_usage_perc") == ("vllm:kv_cache_usage_perc",)
    assert table.aliases("vllm:kv_cache_usage_perc") == ("vllm:gpu_cache_usage_perc",)
    assert set(table.aliases("vllm:time_per_output_token_seconds_bucket")) == {
        "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds",
    }
    assert "vllm:gpu_prefix_cache_hits_total" in table.aliases("vllm:prefix_cache_hits_total")
    assert table.aliases("vllm:num_requests_running") == () == table.aliases("up")


def test_samples_of_old_releases_have_no_label_engine() -> None:
    def labels(version: str) -> tuple[str, ...] | None:
        family = contract_for(version).family("vllm:request_success_total")
        assert family is not None
        return family.labels

    assert labels("0.8.2") == ("model_name", "finished_reason")
    assert labels("0.8.3") == labels("0.33.0") == ("model_name", "engine", "finished_reason")


def test_units_that_the_name_hides_are_said() -> None:
    family = contract_for("0.32.0").family("vllm:kv_cache_usage_perc")
    assert family is not None and family.unit is not None and "0 to 1" in family.unit
    mfu = contract_for("0.32.0").family("vllm:estimated_flops_per_gpu_total")
    assert mfu is not None and mfu.zero_without == "--enable-mfu-metrics"


def test_what_was_not_verified_says_what_it_rests_on() -> None:
    for eras in contract._table().families.values():
        for family in eras:
            assert family.verified is (family.rests_on is None), family.name


def test_the_eras_of_a_family_are_in_order_and_do_not_overlap() -> None:
    table = contract._table()
    releases = ("0.8.0", "0.8.2", "0.8.3", "0.9.0", "0.9.2", "0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.14.1", "0.33.0")
    for name, eras in table.families.items():
        assert len({one.type for one in eras}) == 1, name
        for release in releases:
            number = tuple(int(part) for part in release.split("."))
            assert sum(one.within(number) for one in eras) <= 1, f"{name} in {release}"
        starts = [tuple(int(part) for part in (one.since or table.first).split(".")) for one in eras]
        assert starts == sorted(starts), name
        assert all(one in table.families for era in eras for one in era.new), name


def test_the_range_of_versions_that_names_leave() -> None:
    assert version_range(["vllm:num_requests_running"]) == ("0.8.0", "0.33.0")
    assert version_range(["vllm:kv_cache_usage_perc", "vllm:time_per_output_token_seconds_sum"]) == ("0.9.2", "0.14")
    assert version_range(["vllm:admission_rejections_total", "vllm:num_requests_swapped"]) is None
    assert version_range(["up", "http_requests_total", "vllm:unheard_of"]) is None
