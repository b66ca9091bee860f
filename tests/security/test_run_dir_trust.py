"""A run-dir whose folder or files somebody else has laid out gives that person nothing."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import AgentError, JournalError, UsageError
from agent.journal.lock import LOCK_NAME, StateLock
from agent.launch.clock import Clock
from agent.launch.logstore import LogStore
from agent.launch.overrides import Key, build, load, peek
from agent.launch.rundir import RunDir, open_run_dir, write_json
from tests.launch.harness import Factory

STRANGER = 12345
SERVE = ["vllm", "serve", "M"]
KEY = Key("0" * 64, None, None)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user can be made by root alone")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[Path], RunDir]]:
    folders: list[RunDir] = []

    def make(path: Path) -> RunDir:
        folders.append(open_run_dir(path, lambda text: None))
        return folders[-1]

    yield make
    for folder in folders:
        os.close(folder.lock_fd)


@as_root
def test_a_folder_that_another_user_made_first_is_refused_until_that_user_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o755)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(UsageError, match="belongs to user 12345") as refusal:
        open_run_dir(path, lambda text: None)
    assert "--allow-uid 12345" in str(refusal.value.remedy)
    assert not list(path.iterdir()) and stat.S_IMODE(path.stat().st_mode) == 0o755
    os.close(open_run_dir(path, lambda text: None, frozenset({STRANGER})).lock_fd)


@as_root
def test_a_link_of_another_user_changes_no_mode_where_it_points(tmp_path: Path) -> None:
    target, link = tmp_path / "etc", tmp_path / "run"
    target.mkdir(mode=0o755)
    link.symlink_to(target)
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(UsageError):
        open_run_dir(link, lambda text: None)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755 and not list(target.iterdir())


def test_the_folder_and_its_token_are_closed_to_others(tmp_path: Path, opened: Callable[[Path], RunDir]) -> None:
    before = os.umask(0)
    try:
        opened(tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o2770
    assert stat.S_IMODE((tmp_path / "run" / "token").stat().st_mode) == 0o640


@pytest.mark.parametrize("planted", ["link", "pipe", "folder", "open to others"])
def test_a_planted_token_is_not_used(tmp_path: Path, planted: str, opened: Callable[[Path], RunDir]) -> None:
    run, known = tmp_path / "run", "a" * 64
    run.mkdir()
    (tmp_path / "known").write_text(known)
    (tmp_path / "known").chmod(0o640)
    token = run / "token"
    if planted == "link":
        token.symlink_to(tmp_path / "known")
    elif planted == "pipe":
        os.mkfifo(token)
    elif planted == "folder":
        token.mkdir()
        with pytest.raises(AgentError, match="run-dir cannot be used"):
            opened(run)
        return
    else:
        token.write_text(known)
        token.chmod(0o644)
    folder = opened(run)
    assert folder.token != known and token.is_file() and not token.is_symlink()
    assert (tmp_path / "known").read_text() == known


@pytest.mark.parametrize("name", ["exits.jsonl", "freeze", "starts.json", "overrides.json"])
def test_no_file_is_written_through_a_link(tmp_path: Path, name: str, opened: Callable[[Path], RunDir]) -> None:
    folder = opened(tmp_path / "run")
    for target in (tmp_path / "there", tmp_path / "not-there"):
        (tmp_path / "there").write_text("kept")
        link = folder.path / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        folder.append_exit({"seq": 1})
        folder.set_frozen(True)
        folder.try_write("starts.json", {})
        folder.try_write("overrides.json", {})
        assert (tmp_path / "there").read_text() == "kept" and not (tmp_path / "not-there").exists()


def test_a_freeze_that_points_nowhere_still_freezes(tmp_path: Path, opened: Callable[[Path], RunDir]) -> None:
    folder = opened(tmp_path / "run")
    (folder.path / "freeze").symlink_to(tmp_path / "nowhere")
    assert folder.frozen
    folder.set_frozen(False)
    assert not folder.frozen


@pytest.mark.parametrize("name", ["exits.jsonl", "starts.json", "overrides.json"])
def test_a_pipe_or_socket_in_place_of_a_file_holds_nobody_up(
    tmp_path: Path, name: str, opened: Callable[[Path], RunDir]
) -> None:
    folder = opened(tmp_path / "run")
    os.mkfifo(folder.path / name)
    counters, _ = folder.read_counters()
    assert counters.starts == 0 and folder.last_exit() is None
    found, problem = peek(folder.overrides_path, KEY, SERVE, {})
    assert found is None and (name != "overrides.json" or problem)
    (folder.path / name).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder.path / name))
        assert load(folder.overrides_path, KEY, SERVE, {})[0] is None and folder.last_exit() is None


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path, opened: Callable[[Path], RunDir]) -> None:
    folder = opened(tmp_path / "run")
    with (folder.path / "starts.json").open("wb") as file:
        file.truncate(1 << 40)
    counters, notice = folder.read_counters()
    assert counters.starts == 0 and notice is not None and "longer than" in notice


def test_the_log_reads_and_writes_no_file_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_bytes(b"root:secret")
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / f"{0:020d}.log").symlink_to(tmp_path / "shadow")
    store = LogStore(folder, Clock(), lambda text: None)
    assert store.end == 0
    store.append(b"hello\n")
    assert store.read(0, 100).data == b"hello\n"
    assert (tmp_path / "shadow").read_bytes() == b"root:secret"
    store.close()


@as_root
def test_a_log_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    os.lchown(tmp_path / "log", STRANGER, STRANGER)
    store = LogStore(tmp_path / "log", Clock(), said.append)
    store.append(b"hello\n")
    assert store.read(0, 100).data == b"hello\n" and not list((tmp_path / "elsewhere").iterdir())
    assert len(said) == 1 and "belongs to another user" in said[0]
    store.close()


@pytest.mark.parametrize("incident", ["i-1\n--evil", "\x1b[2J", "é" * 20000, "i" * 60000, "\ud800", 7])
def test_an_incident_of_an_override_is_a_short_printable_name(incident: object) -> None:
    with pytest.raises(AgentError, match="incident"):
        build({"flags": [["--max-num-seqs", "8"]], "incident": incident}, KEY, SERVE, {}, "")


def test_what_was_accepted_can_be_read_back(tmp_path: Path) -> None:
    made = build({"flags": [["--max-num-seqs", "8"]], "incident": "i" * 200}, KEY, SERVE, {}, "2026-01-01T00:00:00Z")
    write_json(tmp_path / "overrides.json", json.loads(json.dumps(made.to_json())))
    assert load(tmp_path / "overrides.json", KEY, SERVE, {}) == (made, None)


@as_root
async def test_a_launcher_in_a_strangers_folder_says_how_to_go_on(launch: Factory, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    os.chown(path, STRANGER, STRANGER)
    launched = launch(run_dir=path)
    assert await launched.ended() == 64
    text = launched.stderr_path.read_text()
    assert "belongs to user 12345" in text and "remedy" in text and "Traceback" not in text


def test_the_lock_of_the_state_folder_empties_no_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    state = tmp_path / "state"
    state.mkdir()
    (state / LOCK_NAME).symlink_to(tmp_path / "kept")
    with pytest.raises(JournalError, match="state folder cannot be written"):
        StateLock(state)
    assert (tmp_path / "kept").read_text() == "kept"
