"""Environment overrides and secrets."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from agent.config import Secret, effective, effective_yaml, load
from agent.errors import ConfigError
from agent.model import Mode


def test_variables_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("budget: {actions: 1, steps: 2}\nlisten: 127.0.0.1:1\n")
    env = {
        "VLLM_AGENT__BUDGET__ACTIONS": "7",
        "VLLM_AGENT__LISTEN": "[::1]:9911",
        "VLLM_AGENT__ACTIONS__PTXAS_PATH": "off",
        "VLLM_AGENT__BACKOFF_SECONDS": "[0, 3]",
        "VLLM_AGENT__SERVERS": "[{name: a, url: 'http://h:1'}]",
        "VLLM_AGENT__slack__channel_id": "C0",
        "VLLM_AGENT__STATE_DIR": "123",
        "VLLM_AGENT_RUN_DIR": "not ours",
    }
    config = load(file, env)
    assert (config.budget.actions, config.budget.steps) == (7, 2)
    assert config.listen_address == ("::1", 9911)
    assert config.mode("ptxas-path") is Mode.OFF
    assert config.mode("restart") is Mode.AUTO
    assert config.backoff_seconds == (0, 3)
    assert config.servers[0].url == "http://h:1"
    assert (config.slack.channel_id, config.state_dir) == ("C0", "123")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("VLLM_AGENT__BUDGTE", "1", "did you mean `budget`"),
        ("VLLM_AGENT__BUDGET__ACTONS", "1", "did you mean `actions`"),
        ("VLLM_AGENT__LISTEN__PORT", "1", "has no keys"),
        ("VLLM_AGENT__", "1", "unknown key"),
        ("VLLM_AGENT__BUDGET__ACTIONS", "many", "`budget.actions`"),
        ("VLLM_AGENT__BUDGET__ACTIONS", "", "`budget.actions`"),
        ("VLLM_AGENT__ACTIONS__RESTART", "always", "off, dry-run"),
        ("VLLM_AGENT__SERVERS", "[{name: a", "check indentation"),
        ("VLLM_AGENT__SERVERS", "[{name: a, url: x}]", "`servers[0].url`"),
        ("VLLM_AGENT__SLACK__BOT_TOKEN", "xoxb-hidden", "secrets come from the environment"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {name: value})
    assert caught.value.where == name
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_secrets_come_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("https://hooks.example/T/B/x\n")
    (tmp_path / "own").write_text("own-key\n")
    env = {
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_WEBHOOK_URL_FILE": str(tmp_path / "hook"),
        "VLLM_API_KEY": "common",
        "OWN_KEY_FILE": str(tmp_path / "own"),
        "VLLM_AGENT__SERVERS": "[{name: a, url: http://a, api_key_env: OWN_KEY}, {name: b, url: http://b}]",
    }
    config = load(None, env)
    secrets = config.secrets
    assert secrets.slack_bot_token is not None and secrets.slack_bot_token.reveal() == "xoxb-1"
    assert secrets.slack_webhook_url is not None
    assert secrets.slack_webhook_url.reveal() == "https://hooks.example/T/B/x"
    assert secrets.slack_app_token is None
    keys = [config.api_key(name) for name in ("a", "b")]
    assert [key.reveal() if key else None for key in keys] == ["own-key", "common"]


def test_no_secret_is_ever_shown(tmp_path: Path) -> None:
    env = {"SLACK_BOT_TOKEN": "xoxb-1", "VLLM_API_KEY": "common-key"}
    env["VLLM_AGENT__SERVERS"] = "[{name: a, url: 'http://user:hunter2@h:1'}]"
    config = load(None, env)
    shown = "".join(
        [
            repr(config),
            str(config),
            f"{config.secrets.slack_bot_token}",
            effective_yaml(config),
            str(effective(config)),
        ]
    )
    assert "*** (from SLACK_BOT_TOKEN)" in shown
    assert "xoxb-1" not in shown and "common-key" not in shown
    assert "hunter2" not in effective_yaml(config)
    with pytest.raises(TypeError):
        pickle.dumps(Secret("x", "here"))
    with pytest.raises(TypeError):
        msgspec.json.encode(config)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SLACK_BOT_TOKEN": "a", "SLACK_BOT_TOKEN_FILE": "/b"}, "both set"),
        ({"SLACK_BOT_TOKEN_FILE": "/nowhere/token"}, "cannot be read"),
        ({"SLACK_BOT_TOKEN_FILE": "/"}, "cannot be read"),
        ({"SLACK_BOT_TOKEN": "hidden\nhidden"}, "spaces, line breaks"),
        ({"SLACK_WEBHOOK_URL": "hidden"}, "is not a URL"),
        ({"VLLM_AGENT__SERVERS": "[{name: a, url: http://a, api_key_env: NOT_SET}]"}, "NOT_SET"),
    ],
)
def test_a_secret_that_does_not_hold_is_named_but_not_shown(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, env)
    assert words in str(caught.value) and caught.value.remedy
    assert "hidden" not in str(caught.value)


def test_an_empty_secret_is_none(tmp_path: Path) -> None:
    assert load(None, {"SLACK_BOT_TOKEN": "", "VLLM_API_KEY": "  "}).secrets.slack_bot_token is None
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        load(None, {"SLACK_BOT_TOKEN_FILE": str(tmp_path / "empty")})
