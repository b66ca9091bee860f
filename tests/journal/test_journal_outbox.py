"""The queue of messages: once, in order, across restarts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from agent.journal import Journal
from tests.journal.builders import TestClock


def test_a_key_is_queued_once_for_ever(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        assert journal.outbox.enqueue("slack", "i-1:open", "i-1", b"1")
        assert not journal.outbox.enqueue("slack", "i-1:open", "i-1", b"2")
        assert journal.outbox.enqueue("other", "i-1:open", "i-1", b"1")
        (mine,) = journal.outbox.pending("slack")
        journal.outbox.mark_sent(mine, "ts-1")
    with Journal.open(tmp_path) as journal:
        assert not journal.outbox.enqueue("slack", "i-1:open", "i-1", b"1")
        assert journal.outbox.pending("slack") == ()
        assert len(journal.outbox.pending()) == 1


def test_a_newer_state_replaces_unsent_older_ones_of_its_topic_only(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        for key, topic in (("1a", "i-1"), ("2a", "i-2"), ("1b", "i-1")):
            journal.outbox.enqueue("slack", key, topic, b"")
        assert [one.key for one in journal.outbox.pending("slack")] == ["2a", "1b"]
        assert journal.outbox.count("slack", "superseded") == 1


def test_a_topic_remembers_what_the_receiver_called_it(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.outbox.enqueue("slack", "1a", "i-1", b"")
        journal.outbox.mark_sent(journal.outbox.pending("slack")[0], "ts-1")
    with Journal.open(tmp_path) as journal:
        journal.outbox.enqueue("slack", "1b", "i-1", b"")
        journal.outbox.enqueue("slack", "2a", "i-2", b"")
        assert [one.ref for one in journal.outbox.pending("slack")] == ["ts-1", None]


def test_failures_wait_and_refusals_are_parked(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        journal.outbox.enqueue("slack", "1a", "i-1", b"")
        (one,) = journal.outbox.pending("slack")
        journal.outbox.mark_failed(one, "down", clock.now() + timedelta(seconds=30))
        (again,) = journal.outbox.pending("slack")
        assert (again.attempts, again.error, again.next_at) == (1, "down", "2026-01-02T00:00:30.000Z")
        journal.outbox.park(again, "invalid_auth")
        assert journal.outbox.pending("slack") == () and journal.outbox.count("slack", "parked") == 1
        assert journal.outbox.unpark("slack") == 1
        assert len(journal.outbox.pending("slack")) == 1


def test_a_message_replaced_while_it_failed_stays_replaced(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.outbox.enqueue("slack", "1a", "i-1", b"")
        (old,) = journal.outbox.pending("slack")
        journal.outbox.enqueue("slack", "1b", "i-1", b"")
        journal.outbox.park(old, "x")
        assert [one.key for one in journal.outbox.pending("slack")] == ["1b"]
        assert journal.outbox.unpark("slack") == 0
