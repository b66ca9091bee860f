"""`agent rules check|list|eval|export` as a person uses them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from agent.cli import main
from agent.cli.rules import rules
from tests.rules.pack import ROOT


def agent(*words: str) -> Result:
    return CliRunner().invoke(rules, list(words), standalone_mode=False)


# -- check ------------------------------------------------------------------------------------------------


def test_the_shipped_rules_are_checked_with_every_profile() -> None:
    done = agent("check")
    assert done.return_value == 0
    assert done.output.endswith("rules: ok\n")


def test_all_problems_are_said_with_file_line_rule_and_construct(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "groups:\n- name: g\n  rules:\n"
        "  - {alert: Joins, expr: 'vllm:num_requests_running > vllm_agent_frozen', labels: {severity: info}}\n"
        "  - {alert: Asks, expr: 'info(up)', labels: {severity: info}}\n"
        "  - {alert: Tells, expr: up == 0, annotations: {summary: '{{ query \"x\" }}'}}\n"
        "  - {alert: Early, expr: 'vllm:num_requests_running > 1', fore: 5m}\n"
    )
    done = agent("check", str(file))
    assert done.return_value == 64
    for line, rule, construct in (
        (4, "Joins", "joins"),
        (5, "Asks", "info"),
        (6, "Tells", "query"),
        (7, "Early", "fore"),
    ):
        assert any(
            text.startswith(f"{file}:{line}: error: rule {rule}:") and construct in text
            for text in done.output.splitlines()
        ), done.output
    assert done.output.count("remedy:") >= 4


def test_two_profiles_at_once_are_refused(tmp_path: Path) -> None:
    done = agent("check", *(str(ROOT / "rules" / "profiles" / f"{name}.yaml") for name in ("batch", "interactive")))
    assert done.return_value == 64
    assert "second profile" in done.output


def test_a_file_of_alerts_alone_is_checked_with_a_shipped_profile() -> None:
    assert agent("check", str(ROOT / "rules" / "alerts" / "latency.yaml")).return_value == 0


def test_a_file_that_is_not_there_is_the_callers_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check", "/nowhere/r.yaml"]) == 64
    assert "/nowhere/r.yaml" in capsys.readouterr().err


# -- list -------------------------------------------------------------------------------------------------


def test_the_list_has_the_threshold_of_each_profile() -> None:
    rows = {row["rule"]: row for row in json.loads(agent("list", "--output", "json").output)["rules"]}
    first = rows["VLLMTimeToFirstTokenHigh"]
    assert (first["target"], first["severity"], first["for_seconds"]) == ("server", "warning", 120)
    assert first["thresholds"]["ttft_p99_seconds"] == {
        "guide-moe": 0.5,
        "guide-high-throughput": 0.15,
        "interactive": 1,
        "batch": 40,
    }
    assert rows["VLLMGpuLost"]["target"] == "agent"
    assert "VLLMGpuLost" in agent("list").output


# -- eval -------------------------------------------------------------------------------------------------


def exposition(waiting: int, tokens: int) -> str:
    labels = '{engine="0",model_name="m"}'
    return (
        f"vllm:num_requests_running{labels} 3\nvllm:num_requests_waiting{labels} {waiting}\n"
        f"vllm:generation_tokens_total{labels} {tokens}\nvllm:kv_cache_usage_perc{labels} 0.5\n"
    )


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    files = []
    for index, (waiting, tokens) in enumerate(((40, 100), (50, 150))):
        path = tmp_path / f"m{index}.prom"
        path.write_text(exposition(waiting, tokens))
        files += ["--file", str(path)]
    return files


def test_an_expression_on_one_saved_answer(saved: list[str]) -> None:
    done = agent("eval", "sum(vllm:num_requests_waiting) * 2", *saved[:2])
    assert done.output == "{} 80\n"


def test_a_rate_needs_two_answers_and_says_so(saved: list[str]) -> None:
    assert "unknown: not yet" in agent("eval", "rate(vllm:generation_tokens_total[5m])", *saved[:2]).output
    done = agent("eval", "rate(vllm:generation_tokens_total[5m]) > 0", *saved, "--interval", "10", "--output", "json")
    answer = json.loads(done.output)
    assert answer["unknown"] is None
    assert answer["result"][0]["value"] > 0


def test_a_series_that_is_not_there_is_unknown_and_one_that_does_not_meet_it_is_empty(saved: list[str]) -> None:
    assert agent("eval", "vllm:no_such_thing > 1", *saved).output.startswith("unknown: ")
    assert agent("eval", "vllm:num_requests_waiting > 1000", *saved).output == "empty: nothing meets it\n"


def test_one_rule_with_its_threshold(saved: list[str]) -> None:
    done = agent("eval", "--rule", "VLLMQueueLong", *saved)
    assert done.output.startswith("VLLMQueueLong: pending\n")
    assert "At least 40 requests have waited" in done.output
    done = agent("eval", "--rule", "VLLMQueueLong", "--profile", "batch", *saved)
    assert done.output == "VLLMQueueLong: inactive\n"


def test_the_whole_pack_says_what_it_cannot_judge(saved: list[str]) -> None:
    rows = {row["rule"]: row for row in json.loads(agent("eval", *saved, "--output", "json").output)["rules"]}
    assert rows["VLLMQueueLong"]["state"] == "pending"
    assert rows["VLLMTimeToFirstTokenHigh"]["unknown"]
    assert rows["VLLMRequestRateDropped"]["unknown"]
    assert "VLLMGpuLost" not in rows, "the server exports nothing of its GPUs"


def test_the_agents_own_series_are_judged_by_its_own_rules(tmp_path: Path) -> None:
    file = tmp_path / "agent.prom"
    file.write_text('vllm_agent_breaker_open{server="s"} 1\nvllm_agent_frozen 0\n')
    rows = {
        row["rule"]: row for row in json.loads(agent("eval", "--file", str(file), "--output", "json").output)["rules"]
    }
    assert rows["VLLMAgentBreakerOpen"]["state"] == "firing"
    assert rows["VLLMAgentFrozen"]["state"] == "inactive"
    assert "VLLMQueueLong" not in rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--rule", "x", "--url", "http://127.0.0.1:1"], "not both"),
        (["up"], "--url"),
        (["up", "--file", "a", "--url", "http://127.0.0.1:1"], "--url"),
        (["sum(", "--file", "/dev/null"], "sum("),
        (["--rule", "NoSuchRule", "--file", "/dev/null"], "NoSuchRule"),
        (["up", "--file", "/nowhere.prom"], "/nowhere.prom"),
        (["up", "--url", "http://127.0.0.1:1"], "no scrape"),
    ],
)
def test_what_cannot_be_evaluated_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "eval", *words]) != 0
    captured = capsys.readouterr().err
    assert said in captured
    assert "Traceback" not in captured


async def test_a_live_server_is_scraped_twice_for_a_rate() -> None:
    asked = 0

    async def metrics(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=exposition(0, 100 * asked), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    words = ["eval", "increase(vllm:generation_tokens_total[1m])", "--url", f"http://{host}:{port}/metrics"]
    try:
        done = await asyncio.to_thread(agent, *words, "--interval", "0.2", "--output", "json")
    finally:
        await runner.cleanup()
    answer: dict[str, Any] = json.loads(done.output)
    assert asked == 2
    assert answer["result"][0]["labels"]["instance"] == f"{host}:{port}"
    assert answer["result"][0]["value"] > 0


# -- export -----------------------------------------------------------------------------------------------


def test_export_prints_one_file_with_the_profile_that_was_asked_for(tmp_path: Path) -> None:
    made = yaml.safe_load(agent("export", "--format", "prometheus", "--profile", "batch").output)
    profiles = {
        rule["labels"]["profile"]
        for group in made["groups"]
        for rule in group["rules"]
        if "record" in rule and "profile" in rule.get("labels", {})
    }
    assert profiles == {"batch"}
    own = tmp_path / "own.yaml"
    own.write_text((ROOT / "rules" / "profiles" / "batch.yaml").read_text().replace("profile: batch", "profile: own"))
    assert "profile own" in agent("export", "--format", "vmalert", "--profile", str(own)).output.splitlines()[0]


def test_a_profile_that_does_not_exist_is_said_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "export", "--format", "prometheus", "--profile", "guide-mo"]) == 64
    assert "guide-moe" in capsys.readouterr().err
