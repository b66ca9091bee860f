"""What is published agrees with the code: schemas, the page of actions, the commands."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from agent.cli import main
from agent.cli.published import published, text
from agent.config import ACTIONS, actions_page, configuration_page, effective, load
from agent.model import (
    Action,
    ActionState,
    Confidence,
    Exit,
    Incident,
    IncidentState,
    Mode,
    Severity,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(published()))
def test_the_schemas_in_the_package_are_current(name: str) -> None:
    file = resources.files("agent") / "schemas" / f"{name}.schema.json"
    remedy = "run `python -m agent.cli.published agent/schemas`"
    assert file.read_text(encoding="utf-8") == text(published()[name]), remedy


@pytest.mark.parametrize("name", sorted(published()))
def test_the_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(published()[name])


def test_the_page_of_actions_is_current() -> None:
    assert (ROOT / "docs" / "actions.md").read_text(encoding="utf-8") == actions_page()
    for policy in ACTIONS:
        assert f"| `{policy.name}` | `{policy.mode.value}` |" in actions_page()


def test_the_page_of_the_configuration_is_current_and_names_every_key() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page()
    for key in ("servers[].api_key_env", "budget.actions", "verify.hold_seconds", "slack.channel_id"):
        assert f"| `{key}` |" in page


def check(name: str, value: object) -> None:
    jsonschema.validate(value, published()[name], cls=jsonschema.Draft202012Validator)


def test_the_configuration_schema_judges_as_the_loader_does(tmp_path: Path) -> None:
    check("configuration", {})
    check("configuration", yaml.safe_load("actions: {restart: 'off'}\nservers: [{name: a, url: http://h}]"))
    for wrong in (
        {"budgte": 1},
        {"actions": {"restart": "yes"}},
        {"actions": {"x": "auto"}},
        {"poll_seconds": 0},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check("configuration", wrong)
    everything = effective(load(None, {}))
    everything.pop("secrets")
    check("configuration", everything)


def test_what_the_agent_writes_matches_its_schema() -> None:
    action = Action(
        id="a-1",
        incident="i-1",
        action="restart",
        change="c",
        mode=Mode.AUTO,
        state=ActionState.RUNNING,
        created_at="t",
    )
    incident = Incident(
        id="i-1",
        server="s",
        fault="engine-dead",
        confidence=Confidence.CERTAIN,
        severity=Severity.CRITICAL,
        state=IncidentState.OPEN,
        opened_at="t",
        summary="x",
        actions=(action,),
    )
    document = json.loads(msgspec.json.encode(incident))
    assert document["class"] == "engine-dead"
    check("incident", document)
    check("action", document["actions"][0])
    record = Exit(
        seq=1, pid=2, command_hash="h", started_at="t", ready_at=None, exited_at="t", code=0, signal=None,
        asked=False, reason="r", oom_kill_delta=None, log_offset=0,
    )  # fmt: skip
    check("exit-record", json.loads(msgspec.json.encode(record)))


def test_the_wire_schema_takes_requests_and_refuses_unknown_verbs() -> None:
    request = {"v": 1, "id": 1, "token": "t", "verb": "hold", "args": {"exit_seq": 3, "seconds": 20}}
    check("verbs", request)
    check("verbs", {"v": 1, "id": 1, "ok": False, "error": {"code": "refused", "message": "m", "remedy": None}})
    for wrong in ({"verb": "format-disk", "args": {}}, {"args": {"exit_seq": 3, "seconds": 61}}):
        with pytest.raises(jsonschema.ValidationError):
            check("verbs", request | wrong)
    key = {"command_sha256": "x", "vllm_version": None, "gpus": []}
    overrides = {"v": 1, "key": key, "flags": [["--max-num-seqs", "32"]], "env": {}, "incident": None}
    check("overrides", overrides | {"created_at": "t"})
    with pytest.raises(jsonschema.ValidationError):
        check("overrides", overrides | {"created_at": "t", "env": {"LD_PRELOAD": "/x"}})


def test_agent_schema_prints_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert {"configuration", "incident", "verbs"} <= set(capsys.readouterr().out.split())
    assert main(["schema", "incident"]) == 0
    assert capsys.readouterr().out == text(published()["incident"])
    assert main(["schema", "incidnt"]) == 64
    assert "did you mean `incident`" in capsys.readouterr().err


def test_agent_config_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("servers: [{name: chat, url: http://h:1}]\n")
    bad.write_text("listen: a:1\nbudgte: 1\n")
    assert main(["config", "check", str(good)]) == 0
    assert "ok" in (out := capsys.readouterr().out) and "chat" in out
    assert main(["config", "check", "--config", str(bad)]) == 64
    error = capsys.readouterr().err
    assert f"{bad}:2" in error and "remedy: did you mean `budget`" in error and "Traceback" not in error
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-hidden")
    assert main(["config", "check", str(good)]) == 64
    assert "slack.channel_id" in (error := capsys.readouterr().err) and "hidden" not in error


def test_agent_config_check_reads_the_rules_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, rules = tmp_path / "a.yaml", tmp_path / "mine.yaml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: 'vllm:x > 1', labels: {severity: info}}]}]")
    file.write_text(f"alertmanager: {{urls: ['http://h:9093']}}\nrules: {{profile: batch, paths: [{rules}]}}\n")
    assert main(["config", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "thresholds of batch" in out and "notifiers: alertmanager" in out
    rules.write_text("groups:\n  - name: g\n    rules: [{alert: A, expr: 'sum('}]\n")
    assert main(["config", "check", str(file)]) == 64
    assert f"{rules}:3" in capsys.readouterr().err


def test_agent_config_show_can_be_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("actions: {restart: off}\npoll_seconds: 3\n")
    monkeypatch.setenv("VLLM_API_KEY", "hidden")
    assert main(["config", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "hidden" not in shown
    tree = yaml.safe_load(shown)
    assert tree.pop("secrets")["vllm_api_key"] == "*** (from VLLM_API_KEY)"
    again = tmp_path / "b.yaml"
    again.write_text(yaml.safe_dump(tree))
    assert load(again, {}) == load(file, {})
    assert main(["config", "show", "--output", "json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["actions"]["restart"] == "off"
