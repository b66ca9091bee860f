"""Full, read-only, broken and foreign disks: nothing is lost that can be kept, and nothing crashes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import JournalError
from agent.journal import SCHEMA_VERSION, Journal, store
from agent.journal.schema import migrate
from tests.journal.builders import TestClock, action, incident


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file of this process grows beyond ``limit`` bytes: writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def fill(journal: Journal, numbers: range) -> None:
    for number in numbers:
        journal.save_incident(incident(f"i-{number}", summary="x" * 4000))


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        fill(journal, range(10))
        assert journal.claim("before")
        with full_disk(8192):
            fill(journal, range(10, 40))
            assert journal.claim("during") and not journal.claim("before")
            assert not journal.healthy and str(tmp_path) in str(journal.last_error)
            assert len(journal.incidents()) == 40
            clock.advance(10)
            assert not journal.retry()
            journal.save_action(action("a-1", "i-39"))
        clock.advance(10)
        assert journal.retry() and journal.healthy and journal.last_error is None
        journal.append_event("after", None, {})
    with Journal.open(tmp_path, clock) as journal:
        assert len(journal.incidents()) == 40 and not journal.claim("during")
        assert journal.action("a-1") is not None
        assert [one.kind for one in journal.events()] == ["after"]


def test_a_full_disk_is_tried_again_only_now_and_then(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        with full_disk(4096):
            fill(journal, range(5))
            assert not journal.healthy
        journal.append_event("x", None, {})
        assert not journal.healthy  # five seconds are not over
        clock.advance(6)
        journal.append_event("x", None, {})
        assert journal.healthy


def test_a_disk_that_is_full_from_the_start_does_not_stop_the_watcher(tmp_path: Path) -> None:
    clock = TestClock()
    with full_disk(0):
        journal = Journal.open(tmp_path, clock)
        fill(journal, range(3))
        assert not journal.healthy and len(journal.incidents()) == 3
    clock.advance(10)
    assert journal.retry()
    journal.close()
    with Journal.open(tmp_path, clock) as journal:
        assert len(journal.incidents()) == 3


def test_a_full_disk_at_the_start_hides_nothing_and_overwrites_nothing(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        fill(journal, range(5))
        assert journal.claim("old")
        journal.outbox.enqueue("slack", "old", "i-0", b"")
        journal.append_event("old", None, {})
    with full_disk(0):
        journal = Journal.open(tmp_path, clock)
        assert not journal.healthy and len(journal.incidents()) == 5
        assert not journal.claim("old") and journal.claim("new")
        fill(journal, range(5, 8))
        journal.outbox.enqueue("slack", "new", "i-7", b"")
        journal.outbox.mark_sent(journal.outbox.pending("slack")[0], "ts")
    clock.advance(10)
    journal.append_event("new", None, {})
    assert journal.healthy
    journal.close()
    with Journal.open(tmp_path, clock) as journal:
        assert len(journal.incidents()) == 8 and not journal.claim("old") and not journal.claim("new")
        assert [one.key for one in journal.outbox.pending("slack")] == ["new"]
        assert [one.kind for one in journal.events()] == ["old", "new"]


def test_a_file_that_somebody_else_locks_is_waited_for_without_blocking(tmp_path: Path) -> None:
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        journal.kv_set("k", "1")
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO kv VALUES ('other', 'x')")
        begin = time.monotonic()
        journal.kv_set("k", "2")
        clock.advance(10)
        journal.kv_set("j", "3")
        assert time.monotonic() - begin < 5
        assert not journal.healthy and "locked" in str(journal.last_error)
        assert (journal.kv_get("k"), journal.kv_get("j")) == ("2", "3")
        other.execute("COMMIT")
        other.close()
        clock.advance(10)
        assert journal.retry()
        assert [journal.kv_get(key) for key in ("k", "j", "other")] == ["2", "3", "x"]


def test_a_folder_that_was_removed_is_made_again_with_everything(tmp_path: Path) -> None:
    clock = TestClock()
    folder = tmp_path / "state"
    with Journal.open(folder, clock) as journal:
        fill(journal, range(5))
        shutil.rmtree(folder)
        journal.save_incident(incident("i-after"))
        assert not journal.healthy and len(journal.incidents()) == 6
        clock.advance(10)
        assert journal.retry()
        assert len(Journal.read(folder).incidents()) == 6
        shutil.rmtree(folder)
        folder.write_text("in the way")
        journal.claim("c")
        clock.advance(10)
        assert not journal.retry() and journal.last_error
        folder.unlink()
        clock.advance(10)
        assert journal.retry() and not journal.claim("c")


def test_writes_kept_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_HELD_WRITES", 3)
    clock = TestClock()
    with Journal.open(tmp_path, clock) as journal:
        with full_disk(4096):
            journal.save_incident(incident("i-1", summary="x" * 9000))
            for number in range(5):
                journal.save_action(action(f"a-{number}", "i-1"))
            assert len(journal.incidents()[0].actions) == 5
        clock.advance(10)
        assert journal.retry()  # what was dropped is missed, what was kept does not fail because of it
        journal.claim("later")
        assert journal.healthy


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_reader_without_permission_is_told_so(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    tmp_path.chmod(0o700)
    script = (
        "import os, sys; from pathlib import Path; from agent.journal import Journal\n"
        "from agent.errors import JournalError\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "for opening in (Journal.read, Journal.open):\n"
        "    try: opening(Path(sys.argv[1]))\n"
        "    except JournalError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "cannot be read: Permission denied" in run.stdout, run.stderr
    assert "cannot be written: Permission denied" in run.stdout and "Traceback" not in run.stderr


def test_closing_writes_back_what_is_held(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, TestClock())
    with full_disk(4096):
        fill(journal, range(5))
    journal.close()
    with Journal.open(tmp_path) as journal:
        assert len(journal.incidents()) == 5


@pytest.mark.parametrize("content", [b"", b"not a database at all\n" * 500, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "journal.db"
    file.write_bytes(content)
    with Journal.open(tmp_path, TestClock()) as journal:
        journal.save_incident(incident("i-1"))
        assert journal.healthy
        kept = list(tmp_path.glob("journal.db.corrupt-*[0-9Z]"))
        if content:
            assert [one.read_bytes() for one in kept] == [content]
            assert str(kept[0]) in journal.notices[0]
            assert journal.events()[0].kind == "journal-replaced"
        else:
            assert kept == []
    with Journal.open(tmp_path) as journal:
        assert journal.incident("i-1") is not None


def test_a_file_that_breaks_under_a_running_watcher_is_set_aside(tmp_path: Path) -> None:
    clock = TestClock()
    journal = Journal.open(tmp_path, clock)
    fill(journal, range(1500))  # more than SQLite's cache holds
    journal.close()
    size = (tmp_path / "journal.db").stat().st_size
    journal = Journal.open(tmp_path, clock)
    with (tmp_path / "journal.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xee" * (size - 4096))
    fill(journal, range(2000, 2040))
    assert "i-2039" in {one.id for one in journal.incidents(limit=5000)}
    clock.advance(10)
    journal.append_event("x", None, {})
    assert journal.healthy and journal.notices
    assert list(tmp_path.glob("journal.db.corrupt-*"))
    journal.save_incident(incident("i-last"))
    journal.close()
    with Journal.open(tmp_path) as journal:
        assert journal.incident("i-last") is not None


def test_a_second_watcher_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = Journal.open(tmp_path)
    with pytest.raises(JournalError, match=f"another watcher \\(pid {os.getpid()}\\)") as caught:
        Journal.open(tmp_path)
    assert "--state-dir" in str(caught.value.remedy)
    first.close()
    Journal.open(tmp_path).close()


def test_a_watcher_that_was_killed_leaves_no_lock_and_no_half_write(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from agent.journal import Journal\n"
        "journal = Journal.open(Path(sys.argv[1])); journal.kv_set('k', 'v'); journal.claim('c')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60).returncode == -9
    assert Journal.read(tmp_path).kv_get("k") == "v"
    with Journal.open(tmp_path) as journal:
        assert journal.kv_get("k") == "v" and not journal.claim("c")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "state", Path("/proc/vllm-agent")):
        with pytest.raises(JournalError) as caught:
            Journal.open(folder)
        assert caught.value.where == str(folder) and caught.value.remedy


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_journal_of_a_newer_agent_is_refused_and_untouched(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    with sqlite3.connect(tmp_path / "journal.db") as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    before = (tmp_path / "journal.db").read_bytes()
    for opening in (Journal.open, Journal.read):
        with pytest.raises(JournalError, match="knows up to"):
            opening(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == before
    with pytest.raises(JournalError, match="knows up to"):  # the lock was let go
        Journal.open(tmp_path)


def test_an_older_journal_becomes_a_newer_one_whole_or_not_at_all(tmp_path: Path) -> None:
    steps = (("CREATE TABLE a (x)",), ("ALTER TABLE a ADD COLUMN y", "INSERT INTO a VALUES (1, 2)"))
    raw = sqlite3.connect(tmp_path / "j.db", isolation_level=None)
    assert migrate(raw, "j", steps[:1]) == 0
    broken = (*steps, ("CREATE TABLE b (x)", "no sql"))
    with pytest.raises(sqlite3.OperationalError):
        migrate(raw, "j", broken)
    assert raw.execute("PRAGMA user_version").fetchone() == (1,)
    assert migrate(raw, "j", steps) == 1
    assert raw.execute("SELECT x, y FROM a").fetchall() == [(1, 2)]
    raw.close()


def test_reading_beside_a_running_watcher_changes_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.save_incident(incident("i-1"))
        with Journal.read(tmp_path) as copy:
            assert [one.id for one in copy.incidents()] == ["i-1"]
            copy.save_incident(incident("i-2"))
        assert journal.incident("i-2") is None
    with pytest.raises(JournalError, match="no journal here"):
        Journal.read(tmp_path / "none")
    (tmp_path / "journal.db").write_bytes(b"junk" * 1000)
    with pytest.raises(JournalError, match="cannot be read"):
        Journal.read(tmp_path)
