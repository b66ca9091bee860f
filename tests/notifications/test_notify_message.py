"""What people read: cause first, within Slack's limits, and never more than text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import load
from agent.errors import ConfigError
from agent.model import ActionState, Evidence, Incident, IncidentState
from agent.notify import build_notifiers
from agent.notify.message import Message, render
from tests.journal.builders import action, incident


def within_limits(message: Message) -> bool:
    assert len(message.blocks) <= 50 and len(message.text) <= 3000
    for block in message.blocks:
        text = block.get("text")
        if isinstance(text, dict):
            assert 1 <= len(text["text"]) <= (150 if block["type"] == "header" else 3000)
        fields = block.get("fields") or block.get("elements") or []
        assert isinstance(fields, list) and len(fields) <= 10
        assert all(1 <= len(field["text"]) <= 2000 for field in fields)
    return len(json.dumps(message.blocks, ensure_ascii=False)) <= 13_000


def test_the_cause_comes_first_and_what_to_do_is_there() -> None:
    waiting = action("a-7", state=ActionState.AWAITING_APPROVAL, expires_at="2026-01-02T01:00:00.000Z")
    message = render(incident("i-1", IncidentState.AWAITING_APPROVAL, actions=(waiting,)))
    assert message.text.startswith("awaiting-approval: oom-serving on chat. CUDA out of memory")
    body = json.dumps(message.blocks, ensure_ascii=False)
    for words in (
        "agent approve a-7",
        "2026-01-02T01:00",
        "--max-num-seqs 64 → 32",
        "64 sequences at once",
        "a.log:7",
    ):
        assert words in body
    assert "agent breaker reset" in json.dumps(render(incident(state=IncidentState.UNRESOLVED)).blocks)


def test_a_log_line_can_neither_ping_nor_draw_a_link() -> None:
    evil = "<!channel> <https://evil.example|click> & ``` <@U1>"
    message = render(incident(summary=evil, evidence=(Evidence(source="log", where="a:1", text=evil),), note=evil))
    shown = message.text + json.dumps(message.blocks[1:])
    assert "<" not in shown and "&lt;!channel&gt;" in shown
    assert shown.count("```") == 2


def test_secrets_do_not_leave() -> None:
    words = "--api-key hunter22secret Authorization: Bearer abcdefgh12345"
    failed = action("a-1", state=ActionState.FAILED, outcome=words)
    evidence = (Evidence(source="log", where="a:1", text=words),)
    message = render(incident(summary=words, evidence=evidence, actions=(failed,), note=words))
    assert "hunter22" not in str(message) and "abcdefgh12345" not in str(message)


def test_a_runbook_is_linked_where_a_base_is_known() -> None:
    from msgspec.structs import replace

    known = replace(incident(), runbook="runbooks/faults/oom-serving")
    assert "<https://r.example/runbooks/faults/oom-serving|runbook>" in str(render(known, "https://r.example/").blocks)
    assert "runbook>" not in str(render(known).blocks)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=9000), st.integers(0, 12), st.sampled_from(list(IncidentState)))
def test_every_incident_fits_into_slack(words: str, count: int, state: IncidentState) -> None:
    evidence = tuple(Evidence(source="log", where="f:1", text=words) for _ in range(count))
    actions = tuple(action(f"a-{number}", outcome=words) for number in range(count))
    one: Incident = incident(state=state, summary=words or "x", evidence=evidence, actions=actions, note=words or None)
    assert within_limits(render(one))


def test_only_what_is_configured_is_made() -> None:
    assert build_notifiers(load(None, {})) == ()
    env = {"SLACK_WEBHOOK_URL": "http://127.0.0.1:1/x"}
    assert [one.name for one in build_notifiers(load(None, env))] == ["slack-webhook"]
    assert build_notifiers(load(None, env | {"VLLM_AGENT__SLACK__ENABLED": "false"})) == ()
    with pytest.raises(ConfigError, match="no channel"):
        build_notifiers(load(None, env | {"SLACK_BOT_TOKEN": "xoxb-1"}))
    both = env | {"SLACK_BOT_TOKEN": "xoxb-1", "VLLM_AGENT__SLACK__CHANNEL_ID": "C0"}
    assert [one.name for one in build_notifiers(load(None, both))] == ["slack"]
