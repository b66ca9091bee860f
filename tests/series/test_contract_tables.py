"""The table of each captured version against the captures: names, types, labels, modes, empties."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.series.contract import Contract, PresenceKind, contract_for, is_multiprocess, version_range

CAPTURES = Path(__file__).parents[1] / "data" / "captures" / "metrics"
FILES = sorted(CAPTURES.glob("*.prom"))
VERSIONS = {"cpu032": "0.32.0", "h200": "0.25.1", "h200x2": "0.25.1"}
OURS = ("vllm:", "http_", "process_", "python_")
KV_CACHE_METRICS = ("cpu032_07_kv_pressure_t1", "cpu032_07_kv_pressure_t2", "cpu032_07_kv_pressure_t4")

Found = dict[str, tuple[str, set[str], set[frozenset[str]]]]


def version(path: Path) -> str:
    return VERSIONS[path.name.partition("_")[0]]


def contract(path: Path) -> Contract:
    return contract_for(version(path), multiprocess="multiproc" in path.name or "api_server_count" in path.name)


@cache
def families(path: Path) -> Found:
    """Name of the samples (a counter with _total) -> type, names of all samples, label sets."""
    found: Found = {}
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
        if family.name.startswith(OURS) and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {frozenset(one.labels) - {"le", "quantile"} for one in family.samples}
            found[name] = (family.type, {one.name for one in family.samples}, labels)
    return found


def test_the_captures_are_there() -> None:
    assert len(FILES) == 13
    assert {version(path) for path in FILES} == {"0.25.1", "0.32.0"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_family_of_a_capture_stands_in_its_table_with_type_and_labels(path: Path) -> None:
    table = contract(path)
    for name, (kind, samples, labels) in families(path).items():
        family = table.family(name)
        assert family is not None, name
        assert (family.name, family.type) == (name, kind)
        assert {resolved.name for one in samples if (resolved := table.family(one))} <= {name}
        assert all(table.family(one) is family for one in samples)
        if family.labels is not None:
            assert labels <= {frozenset(family.labels)}, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_exported_family_is_in_a_capture_of_its_mode(path: Path) -> None:
    table, found = contract(path), families(path)
    for name in table.families():
        presence = table.presence(name)
        if presence.kind is PresenceKind.EXPORTED:
            assert found[name][1], f"{name} has no samples"
        elif presence.kind is PresenceKind.LACKING:
            assert name not in found, presence.reason


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_feature_brings_is_there_with_the_feature_alone(path: Path) -> None:
    table, found = contract(path), families(path)
    needy = {name for name in table.families() if table.presence(name).kind is PresenceKind.NEEDS_FEATURE}
    kv_blocks = {name for name in needy if name.startswith("vllm:kv_block_")}
    assert len(kv_blocks) == 3
    assert needy & found.keys() == (kv_blocks if path.stem in KV_CACHE_METRICS else set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_but_what_starts_empty_is_empty(path: Path) -> None:
    table, found = contract(path), families(path)
    empty = {name for name, (_, samples, _) in found.items() if not samples}
    assert {table.presence(name).kind for name in empty} <= {PresenceKind.STARTS_EMPTY}


@pytest.mark.parametrize("name", ["cpu032_01_idle_before_first_request", "h200_025_base_idle"])
def test_what_starts_empty_is_empty_before_the_first_request(name: str) -> None:
    path = CAPTURES / f"{name}.prom"
    table, found = contract(path), families(path)
    starts = {one for one in table.families() if table.presence(one).kind is PresenceKind.STARTS_EMPTY}
    assert starts == {one for one, (_, samples, _) in found.items() if not samples}
    assert "http_requests_total" in starts and table.presence("http_requests_total").is_zero
    assert "vllm:request_success_total" not in starts  # its series exist from the start


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_registry_of_several_processes_is_told_by_its_names(path: Path) -> None:
    names = {name for _, samples, _ in families(path).values() for name in samples}
    assert is_multiprocess(names) is contract(path).multiprocess
    assert is_multiprocess({name for name in names if not name.startswith("vllm:")}) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_created_series_vanish_with_several_processes(path: Path) -> None:
    text, table = path.read_text(encoding="utf-8"), contract(path)
    gone = table.presence("vllm:prompt_tokens_created").kind is PresenceKind.LACKING
    assert gone is ("vllm:prompt_tokens_created" not in text)
    assert table.presence("vllm:prompt_tokens_total").kind is PresenceKind.EXPORTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_exposition_bounds_the_version(path: Path) -> None:
    names = {name for _, samples, _ in families(path).values() for name in samples}
    found = version_range(names)
    assert found == (("0.32.0", "0.33.0") if version(path) == "0.32.0" else ("0.20.0", "0.33.0"))
