"""What goes wrong around the judging: reloads that overtake each other, a folder that is gone, alerts that waited."""

from __future__ import annotations

import io
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.model import AlertState
from agent.watch import service
from agent.watch.narrate import Narrator
from agent.watch.rulebook import Rulebook, read_rulebook
from tests.watching.server import serving
from tests.watching.test_judging import FIRING, busy, load, rules, said, settings, status, until
from tests.watching.test_whole_watcher import running
from tests.watching.watcher import LeapClock


async def test_a_file_that_changes_while_it_is_read_again_is_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_read, may_end = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Rulebook:
        book = read_rulebook(*arguments)
        has_read.set()
        assert may_end.wait(20)
        return book

    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path, limit=100))) as run:
        load(server, 7)
        await until(run, lambda: status(run, "Busy")["unknown"] is None)
        monkeypatch.setattr(service, "read_rulebook", slow)
        run.watcher._reload(lambda: run.watcher._current.value)
        await until(run, has_read.is_set)
        rules(tmp_path, limit=3)
        run.watcher._reload(lambda: run.watcher._current.value)
        may_end.set()
        await until(run, lambda: busy(run))


async def test_a_profile_that_needs_a_new_start_stays_until_then(tmp_path: Path) -> None:
    async with serving() as server:
        text = f"servers: [{{name: chat, url: '{server.url}', profile: PROFILE}}]\n"
        async with running(tmp_path, text.replace("PROFILE", "batch")) as run:
            await until(run, lambda: run.watcher._judges is not None and "chat" in run.watcher._judges._servers)
            run.file.write_text(run.file.read_text().replace("batch", "interactive"))
            await run.reload()
            judges = run.watcher._judges
            assert judges is not None
            await until(run, lambda: not run.watcher._rereading.running)
            assert judges._book.of_server("batch").profile == "batch", "neither the default nor the new one"


async def test_what_only_waited_is_not_shown_for_ever(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path, more="for: 1h"))) as run:
        load(server, 7)
        value = run.watcher._metrics.registry.get_sample_value
        labels = {"server": "chat", "rule": "Busy", "state": "pending"}
        await until(run, lambda: value("vllm_agent_alerts", labels) == 1)
        load(server, 0)
        await until(run, lambda: not busy(run))
        await until(run, lambda: value("vllm_agent_alerts", labels) is None)


async def test_a_state_folder_that_is_gone_ends_neither_the_rules_nor_the_watcher(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path))) as run:
        load(server, 7)
        await until(run, lambda: busy(run))
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "state").write_text("no folder")
        judges = run.watcher._judges
        assert judges is not None
        for judge in judges._all():
            judge._saved_at = -1e9
        await judges.round()
        assert said(run, "the keeping of series fails") >= 1


def test_an_alert_writes_no_control_characters_on_the_terminal() -> None:
    out = io.StringIO()
    hostile = msgspec.structs.replace(
        FIRING, state=AlertState.FIRING, annotations={"summary": "a\x1b[2Jb\r c", "description": "d\x07"}
    )
    Narrator(out, LeapClock()).alert(hostile)
    assert not set(out.getvalue()) & set("\x1b\r\x07")
