"""The configuration file: what holds is read, what does not is named with its line and a remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.config import default_modes, load
from agent.errors import ConfigError
from agent.model import Mode

FULL = """\
listen: "[::1]:0"
state_dir: /tmp/state
servers:
  - name: chat
    url: https://127.0.0.1:8000
    log: [/var/log/vllm.log]
    tls_ca: /etc/ca.pem
    root_path: /v
  - {name: embed, run_dir: /run/vllm-agent/embed}
poll_seconds: 2
log_level: debug
actions:
  restart: off
  oom-reduce-batch: dry-run
dry_run: false
budget: {actions: 5, window_seconds: 60, steps: 2}
backoff_seconds: [0, 5]
breaker: {failures: 2}
approval_expires_seconds: 60
verify: {hold_seconds: 0}
runbook_base_url: https://runbooks.example/
slack: {channel_id: C0123, enabled: no-such-word}
"""


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(tmp_path: Path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), {})
    assert caught.value.remedy
    assert caught.value.exit_code == 64
    return caught.value


def test_no_file_gives_every_default() -> None:
    config = load(None, {})
    assert config.listen_address == ("127.0.0.1", 9911)
    assert config.actions == default_modes()
    assert config.backoff_seconds == (0, 1, 2, 4, 8, 16, 32, 60)
    assert (config.budget.actions, config.breaker.failures, config.verify.serving_seconds) == (3, 3, 900)


def test_what_changes_the_api_the_outputs_or_the_neighbours_asks_a_person() -> None:
    modes = default_modes()
    asked = {modes.pop(name) for name in ("kv-fit-length", "enforce-eager", "kv-raise-utilization")}
    assert asked == {Mode.APPROVE}
    assert set(modes.values()) == {Mode.AUTO}


def test_a_full_file_is_read(tmp_path: Path) -> None:
    config = load(write(tmp_path, FULL.replace("no-such-word", "true")), {})
    assert config.listen_address == ("::1", 0)
    assert [server.name for server in config.servers] == ["chat", "embed"]
    assert config.mode("restart") is Mode.OFF  # YAML 1.1 would read `off` as false
    assert config.mode("oom-reduce-batch") is Mode.DRY_RUN
    assert config.mode("ptxas-path") is Mode.AUTO
    assert config.mode("no-such-action") is Mode.OFF
    assert (config.budget.window_seconds, config.breaker.window_seconds) == (60, 900)


def test_dry_run_lowers_every_mode_but_off(tmp_path: Path) -> None:
    config = load(write(tmp_path, "dry_run: true\nactions: {restart: off}\n"), {})
    assert config.mode("restart") is Mode.OFF
    assert config.mode("ptxas-path") is Mode.DRY_RUN


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("listen: a:1\nbudgte: {}\n", 2, ["unknown key `budgte`", "did you mean `budget`"]),
        ("budget:\n  actons: 1\n", 2, ["`budget.actons`", "did you mean `actions`"]),
        ("actions:\n  restart: auto\n  restrat: auto\n", 3, ["`actions.restrat`", "did you mean `restart`"]),
        ("actions:\n  restart: auto\n  ptxas-path: yes\n", 3, ["`actions.ptxas-path`", "off, dry-run"]),
        (
            "servers:\n- name: a\n  url: http://h:1\n  lgo: []\n",
            4,
            ["`servers[0].lgo`", "did you mean `log`"],
        ),
        ("budget:\n  actions: three\n", 2, ["`budget.actions`", "expected `int`"]),
        ("\n\npoll_seconds: 1s\n", 3, ["`poll_seconds`", "without quotes or unit"]),
        ("poll_seconds: 0\n", 1, ["`poll_seconds`", ">= 0.05"]),
        ("slack: {enabled: no}\n", 1, ["`slack.enabled`", "expected `bool`"]),
        ("slack:\n  bot_token: xoxb-hidden\n", 2, ["`slack.bot_token`", "secrets come from the environment"]),
        ("slack:\n  channel_id: '#sre'\n", 2, ["`slack.channel_id`", "id (C"]),
        ("breaker: null\n", 1, ["`breaker`", "expected `object`, got `null`"]),
        ("listen: 9911\n", 1, ["`listen`"]),
        ("listen: localhost\n", 1, ["`listen`", "HOST:PORT"]),
        ("listen: '::1:9911'\n", 1, ["brackets"]),
        ("listen: a:99999\n", 1, ["0 to 65535"]),
        ("servers:\n  - name: a\n", 2, ["neither url nor run_dir"]),
        ("servers:\n  - name: a\n    url: h:8000\n", 3, ["`servers[0].url`", "http://"]),
        (
            "servers:\n- {name: a, url: http://h}\n- {name: a, url: http://i}\n",
            3,
            ["two servers are named `a`"],
        ),
        ("servers:\n- {name: 'a b', url: http://h}\n", 2, ["`servers[0].name`"]),
        ("servers: {a: 1}\n", 1, ["expected `array`"]),
        ("backoff_seconds: []\n", 1, ["`backoff_seconds`"]),
        ("backoff_seconds: [0, -1]\n", 1, ["`backoff_seconds[1]`"]),
        ("listen: a:1\nlisten: b:2\n", 2, ["given twice", "line 1"]),
        ("a:\n\tb: 1\n", 2, ["spaces, not tabs"]),
        ("listen: [\n", 2, ["check indentation"]),
        ("listen: a:1\n  x: 1\n", 2, ["mapping values are not allowed"]),
        ("a: *b\n", 1, ["undefined alias"]),
        ("a: &a [*a]\n", 1, ["refers to itself"]),
        ("dry_run: !!python/object/apply:os.system [x]\n", 1, ["is not known", "remove the tag"]),
        ("dry_run: !!python/name:os.system x\n", 1, ["is not known", "remove the tag"]),
        ("listen: a:1\n---\nlisten: b:1\n", 2, ["another document"]),
        ("- listen\n", 1, ["must be a mapping"]),
        ("? [a]\n: b\n", 1, ["a key must be a word"]),
        ("", 1, ["empty"]),
        ("# only a comment\n", 1, ["empty"]),
        ("a: 1\nb: \x07\n", 2, ["control characters"]),
        ("a: " + "[" * 5000, 1, ["nested too deeply"]),
        ("poll_seconds: " + "1" * 5000, 1, ["too long"]),
    ],
)
def test_what_does_not_hold_is_named_with_its_line(tmp_path: Path, text: str, line: int, words: list[str]) -> None:
    error = refused(tmp_path, text)
    assert str(error).startswith(f"{tmp_path}/agent.yaml:{line}: ") or "nested" in words[0]
    for word in words:
        assert word in str(error)
    assert "xoxb-hidden" not in str(error)


def test_binary_and_foreign_encodings_are_named(tmp_path: Path) -> None:
    assert "agent.yaml:2" in str(refused(tmp_path, b"a: 1\nb: \x00\x01\n"))
    assert "agent.yaml:3" in str(refused(tmp_path, b"a: 1\n\nb: \xff\xfe\n"))
    assert "UTF-8" in str(refused(tmp_path, "a: ü\n".encode("utf-16")))
    assert "1 MiB" in str(refused(tmp_path, b"a: 1\n" * 300_000))


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    config = load(write(tmp_path, b"\xef\xbb\xbfpoll_seconds: 2\r\ndry_run: true\r\n"), {})
    assert (config.poll_seconds, config.dry_run) == (2, True)


def test_paths_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "none.yaml", "no such file")):
        with pytest.raises(ConfigError, match=words):
            load(path, {})
    loop = tmp_path / "loop"
    os.symlink("loop", loop)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(loop, {})


def test_an_expansion_bomb_is_refused_quickly(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "nested too deeply" in str(refused(tmp_path, "\n".join(lines)))
