"""Which servers are watched and how they are reached, from command line, file and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import Config, Server, load
from agent.errors import ConfigError, UsageError
from agent.launch import server_api_key
from agent.watch.specs import CommandLine, settings_of, specs_of


def test_several_servers_of_the_file(tmp_path: Path) -> None:
    settings = Config(
        servers=(
            Server(name="chat", run_dir="/run/a"),
            Server(name="embed", url="http://10.0.0.1:8000", root_path="/v/", log=("/var/log/vllm.log",)),
            Server(name="socket", url="unix:///run/vllm.sock", root_path="v"),
        )
    )
    chat, embed, socket = specs_of(CommandLine(), settings, {})
    assert chat.run_dir == Path("/run/a") and chat.url is None
    assert embed.url == "http://10.0.0.1:8000/v" and embed.logs == (Path("/var/log/vllm.log"),)
    assert socket.url == "unix:///run/vllm.sock:/v"


def test_the_command_line_wins_and_the_file_completes_it(tmp_path: Path) -> None:
    settings = load(None, {"VLLM_API_KEY": "common"})
    (spec,) = specs_of(CommandLine(run_dir=Path("/run/x/chat")), settings, {})
    assert (spec.name, spec.api_key) == ("chat", "common")
    (spec,) = specs_of(CommandLine(), settings, {"VLLM_AGENT_RUN_DIR": "/run/y"})
    assert spec.run_dir == Path("/run/y")


@pytest.mark.parametrize("url", ["localhost:8000", "8000", "ftp://host", "http://", "http://h:99999", "unix:rel", ""])
def test_an_address_that_is_none_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        specs_of(CommandLine(url=url), Config(), {})
    assert refused.value.where == "--url" and "http://HOST:PORT" in str(refused.value.remedy)


def test_nothing_named_is_refused() -> None:
    with pytest.raises(UsageError, match="no server"):
        specs_of(CommandLine(), Config(), {})


def test_log_files_beside_a_run_dir_are_refused() -> None:
    with pytest.raises(UsageError, match="--log and --run-dir"):
        specs_of(CommandLine(run_dir=Path("/run/a"), logs=(Path("x.log"),)), Config(), {})


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_ca_that_cannot_be_used_is_said_before_anything_starts(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    settings = Config(servers=(Server(name="chat", url="https://h:1", tls_ca=str(file)),))
    with pytest.raises(ConfigError, match="tls_ca of server `chat`") as refused:
        specs_of(CommandLine(), settings, {})
    assert refused.value.where == str(file)


def test_the_command_line_lies_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("listen: 127.0.0.1:1\nstate_dir: /from/file\n")
    given = CommandLine(config=file, listen="127.0.0.1:2", dry_run=True, default_state_dir=Path("/default"))
    settings = settings_of(given, {})
    assert (settings.listen, settings.state_dir, settings.dry_run) == ("127.0.0.1:2", "/from/file", True)
    assert settings_of(CommandLine(default_state_dir=Path("/default")), {}).state_dir == "/default"


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("vllm serve m --api-key one two", "one"),
        ("vllm serve m --api-key=one", "one"),
        ("vllm serve m --api_key one --port 1", "one"),
        ("vllm serve m --api-key --port 1", None),
        ("vllm serve m", None),
    ],
)
def test_the_key_of_the_servers_command_is_found(command: str, key: str | None) -> None:
    assert server_api_key(command.split()) == key
    assert server_api_key(["bash", "-c", command]) == key
