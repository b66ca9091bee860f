"""What the journal remembers, also after it was closed and opened again."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest

from agent.cli.published import published
from agent.errors import JournalError
from agent.journal import Journal, new_id
from agent.model import ActionState, IncidentState, SystemClock
from tests.journal.builders import TestClock, action, incident


def test_incidents_and_actions_survive_a_restart(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        journal.save_incident(incident("i-1", actions=(action("a-1"),)))
        journal.save_action(action("a-1", state=ActionState.VERIFIED, outcome="serving again"))
        journal.save_action(action("a-2"))
    with Journal.open(tmp_path, clock) as journal:
        found = journal.incident("i-1")
        assert found is not None
        assert [(one.id, one.state) for one in found.actions] == [
            ("a-1", ActionState.VERIFIED),
            ("a-2", ActionState.RUNNING),
        ]
        assert journal.action("a-1") == found.actions[0]
        assert (journal.incident("i-9"), journal.action("a-9")) == (None, None)


def test_an_action_of_an_unknown_incident_is_refused(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        with pytest.raises(JournalError, match="not in the journal"):
            journal.save_action(action("a-1", incident="i-none"))
        assert journal.action("a-1") is None and journal.healthy


def test_incidents_are_listed_newest_first_and_by_state(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        for number, state in enumerate([IncidentState.RESOLVED, IncidentState.OPEN, IncidentState.VERIFYING]):
            clock.advance(1)
            journal.save_incident(incident(f"i-{number}", state, clock))
        assert [one.id for one in journal.incidents()] == ["i-2", "i-1", "i-0"]
        assert [one.id for one in journal.incidents(IncidentState.OPEN)] == ["i-1"]
        assert [one.id for one in journal.incidents(limit=1)] == ["i-2"]
        assert [one.id for one in journal.open_incidents()] == ["i-1", "i-2"]


def test_the_budget_sees_one_fault_of_one_server_in_its_window(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        start = clock.now()
        for number, (server, fault) in enumerate([("chat", "x"), ("chat", "y"), ("embed", "x"), ("chat", "x")]):
            journal.save_incident(incident(f"i-{number}", server=server, fault=fault))
            journal.save_action(action(f"a-{number}", incident=f"i-{number}", clock=clock))
            clock.advance(600)
        found = [one.id for one in journal.actions_since("chat", "x", start)]
        assert found == ["a-0", "a-3"]
        assert [one.id for one in journal.actions_since("chat", "x", start + timedelta(seconds=1))] == ["a-3"]


def test_a_claim_is_granted_once_for_ever(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        assert [journal.claim("chat/exit/7"), journal.claim("chat/exit/7"), journal.claim("chat/exit/8")] == [
            True, False, True,
        ]  # fmt: skip
    with Journal.open(tmp_path) as journal:
        assert not journal.claim("chat/exit/7")
        journal.prune(SystemClock().now() + timedelta(days=1))
        assert not journal.claim("chat/exit/7")


def test_small_state_is_kept_replaced_and_forgotten(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.kv_set("breaker/chat", "open")
        journal.kv_set("breaker/chat", "closed")
        journal.kv_set("offset/chat", "17")
        journal.kv_set("gone", "1")
        journal.kv_set("gone", None)
    with Journal.open(tmp_path) as journal:
        assert (journal.kv_get("breaker/chat"), journal.kv_get("gone")) == ("closed", None)
        assert journal.kv_keys("breaker/") == ("breaker/chat",)


def test_events_are_numbered_across_restarts(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        first = journal.append_event("started", "chat", {"pid": 7})
    with Journal.open(tmp_path) as journal:
        second = journal.append_event("exit", "chat", {"code": 0})
        assert second > first
        assert [(one.kind, one.data) for one in journal.events(after=first)] == [("exit", {"code": 0})]


def test_pruning_drops_what_is_old_and_closed_only(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        journal.save_incident(incident("i-old", IncidentState.RESOLVED, clock, actions=(action("a-old", "i-old"),)))
        journal.save_incident(incident("i-open", IncidentState.OPEN, clock))
        journal.append_event("x", None, {})
        clock.advance(1000)
        journal.save_incident(incident("i-new", IncidentState.RESOLVED, clock))
        assert journal.prune(clock.now() - timedelta(seconds=10)) == 3
        assert {one.id for one in journal.incidents()} == {"i-open", "i-new"}
        assert journal.action("a-old") is None and journal.events() == ()


def test_the_export_is_json_lines_that_match_the_schema(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.save_incident(incident("i-1", actions=(action("a-1"),)))
        for number in range(3):
            journal.append_event("x", "chat", {"n": number})
        lines = [json.loads(line) for line in journal.export()]
    for line in lines:
        jsonschema.validate(line, published()["journal-export"])
    assert lines[0]["incident"]["actions"][0]["id"] == "a-1"
    assert [line["event"]["data"]["n"] for line in lines[1:]] == [0, 1, 2]


def test_ids_sort_by_time_and_differ() -> None:
    clock = TestClock()
    ids = []
    for _ in range(50):
        clock.advance(0.001)
        ids.append(new_id("i", clock))
    assert ids == sorted(ids) and len(set(ids)) == 50
    assert len({new_id("a", clock) for _ in range(20)}) > 15
    assert all(one.startswith("i-") and one[2:].isalnum() and len(one) == 14 for one in ids)


def test_opening_an_incident_is_quick(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        durations = []
        for number in range(50):
            begin = time.perf_counter()
            journal.save_incident(incident(f"i-{number}"))
            durations.append(time.perf_counter() - begin)
    assert sorted(durations)[25] < 0.005
