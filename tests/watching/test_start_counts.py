"""Starts are counted once each, whoever lived: over restarts of the watcher, of the launcher, and of both."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.journal import Journal
from agent.model import Exit, State, SystemClock
from agent.series import own_metrics
from agent.serve import AgentMetrics
from agent.watch.starts import REASONS, StartCounts, read_starts, start_reason
from agent.watch.world import ServerSpec
from tests.launch.harness import Factory, Launched, until
from tests.watching.conftest import READY
from tests.watching.launcher import FakeLauncher
from tests.watching.server import serving
from tests.watching.watcher import Watching, watching

KEY = "watch/starts/chat"


class RunDir:
    """The files as a launcher writes them; ``start`` and ``end`` as its server lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made()

    def made(self) -> None:
        self.path.mkdir(exist_ok=True)
        (self.path / "token").write_text(os.urandom(32).hex())
        self.number = 0
        self.write()
        (self.path / "exits.jsonl").unlink(missing_ok=True)

    def write(self) -> None:
        counters = {"v": 1, "event_seq": 3, "exit_seq": 1, "starts": self.number, "failures": [], "breaker_open": False}
        (self.path / "starts.json").write_text(json.dumps(counters))

    def start(self) -> None:
        self.number += 1
        self.write()

    def end(self, *, asked: bool = False, reason: str = "killed by SIGKILL") -> None:
        record = {
            "v": 1, "seq": 1, "pid": 4, "command_hash": "c0ffee", "started_at": "2026-11-30T12:00:00.000Z",
            "ready_at": None, "exited_at": "2026-11-30T12:00:09.000Z", "code": 0, "signal": None, "asked": asked,
            "reason": reason, "oom_kill_delta": 0, "log_offset": 0,
        }  # fmt: skip
        with (self.path / "exits.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "state", SystemClock()) as opened:
        yield opened


def counts(**found: int) -> dict[str, int]:
    return {reason: found.get(reason, 0) for reason in REASONS}


def watcher(journal: Journal, run_dir: RunDir) -> StartCounts:
    """A watcher that begins its life."""
    return StartCounts("chat", journal, run_dir.path)


# -- who lived when --------------------------------------------------------------------------------------------


def test_a_watcher_that_is_restarted_counts_nothing_again(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    first = watcher(journal, run_dir)
    assert first.found(running=True, restarts=0, overridden=False) == 1
    assert first.counts == counts(operator=1)
    for _ in range(3):
        again = watcher(journal, run_dir)
        assert again.counts == counts(operator=1)
        assert again.found(running=True, restarts=0, overridden=False) == 0
        assert again.counts == counts(operator=1)


def test_a_start_is_counted_once_though_it_is_told_twice(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    found = watcher(journal, run_dir)
    found.found(running=True, restarts=0, overridden=False)
    run_dir.end()
    run_dir.start()
    assert found.began("restart") == 1
    # It died before it could note that it had seen the event, and the launcher tells it again.
    assert watcher(journal, run_dir).began("restart") == 0
    assert watcher(journal, run_dir).counts == counts(operator=1, restart=1)


def test_a_start_between_the_status_and_its_event_is_counted_once(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    found = watcher(journal, run_dir)
    run_dir.end()
    run_dir.start()  # after the status was read, before the file was
    assert found.found(running=True, restarts=0, overridden=False) == 2
    assert found.began("restart") == 0
    assert sum(found.counts.values()) == 2


def test_starts_while_no_watcher_lived_are_found(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    watcher(journal, run_dir).found(running=True, restarts=0, overridden=False)
    for _ in range(3):
        run_dir.end()
        run_dir.start()
    run_dir.end(asked=True, reason="asked: restart (new weights)")
    run_dir.start()
    late = watcher(journal, run_dir)
    assert late.found(running=True, restarts=4, overridden=False) == 4
    assert late.counts == counts(operator=2, restart=3)


def test_starts_before_the_first_watcher_are_found(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    run_dir.end()
    run_dir.start()
    run_dir.end(reason="stopped-from-outside")
    run_dir.start()
    run_dir.end()
    found = watcher(journal, run_dir)  # the server is dead now
    assert found.found(running=False, restarts=2, overridden=False) == 3
    assert found.counts == counts(operator=2, restart=1)
    run_dir.start()
    assert found.began("remedy") == 1
    assert found.counts == counts(operator=2, restart=1, remedy=1)


def test_a_launcher_that_is_restarted_counts_on(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    found = watcher(journal, run_dir)
    found.found(running=True, restarts=0, overridden=False)
    run_dir.end()
    run_dir.start()  # by the same launcher, which is then killed with its server: no record of that end
    run_dir.start()  # by the next one
    assert watcher(journal, run_dir).found(running=True, restarts=0, overridden=False) == 2
    assert watcher(journal, run_dir).counts["operator"] == 2
    assert sum(watcher(journal, run_dir).counts.values()) == 3


def test_a_launcher_that_starts_nothing_has_no_first_start(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    watcher(journal, run_dir).found(running=True, restarts=0, overridden=False)
    run_dir.end()
    run_dir.start()
    run_dir.end()
    # Its breaker is open from before: the newest start is of an earlier launcher.
    late = watcher(journal, run_dir)
    assert late.found(running=False, restarts=None, overridden=False) == 1
    assert late.counts == counts(operator=1, restart=1)


def test_overrides_in_force_are_of_the_newest_start(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    for _ in range(2):
        run_dir.end()
        run_dir.start()
    found = watcher(journal, run_dir)
    assert found.found(running=True, restarts=2, overridden=True) == 3
    assert found.counts == counts(operator=1, restart=1, remedy=1)


def test_events_that_were_not_told_are_made_good_at_the_next(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    found = watcher(journal, run_dir)
    found.found(running=True, restarts=0, overridden=False)
    for _ in range(3):
        run_dir.start()
    assert found.began("remedy") == 3
    assert found.counts == counts(operator=1, remedy=1, restart=2)


# -- files that are gone, broken or anew -----------------------------------------------------------------------


def test_a_run_dir_that_is_made_anew_counts_from_one(journal: Journal, run_dir: RunDir) -> None:
    for _ in range(5):
        run_dir.start()
    watcher(journal, run_dir).found(running=True, restarts=4, overridden=False)
    run_dir.made()
    for _ in range(6):  # more than before: only the token tells
        run_dir.start()
    found = watcher(journal, run_dir)
    assert found.found(running=True, restarts=5, overridden=False) == 6
    assert sum(found.counts.values()) == 11


def test_a_count_that_began_anew_is_seen_by_its_fall(journal: Journal, run_dir: RunDir) -> None:
    for _ in range(5):
        run_dir.start()
    watcher(journal, run_dir).found(running=True, restarts=4, overridden=False)
    run_dir.number = 0  # the launcher set a broken starts.json aside
    run_dir.start()
    assert watcher(journal, run_dir).found(running=True, restarts=0, overridden=False) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 2, "starts": 9}', '{"v": 1, "starts": -3}', '{"v": 1}', "null"])
def test_a_count_that_cannot_be_read_is_made_good_by_events(journal: Journal, run_dir: RunDir, text: str) -> None:
    file = run_dir.path / "starts.json"
    run_dir.number = 1
    file.write_text(text)
    assert read_starts(run_dir.path) is None
    found = watcher(journal, run_dir)
    assert found.found(running=True, restarts=0, overridden=False) == 1
    assert watcher(journal, run_dir).found(running=True, restarts=0, overridden=False) == 0
    assert found.began("restart") == 1
    run_dir.number = 2
    run_dir.write()  # it can be read again, and contains both
    assert found.found(running=True, restarts=1, overridden=False) == 0
    file.write_text(text)
    assert found.began("restart") == 1
    run_dir.write()  # not contained yet: the launcher's disk was full
    assert found.found(running=True, restarts=1, overridden=False) == 0
    run_dir.start()
    assert found.found(running=True, restarts=2, overridden=False) == 0
    run_dir.start()
    assert found.began("restart") == 1
    assert found.counts == counts(operator=1, restart=3)


def test_nothing_is_read_through_a_link_or_a_pipe(run_dir: RunDir, tmp_path: Path) -> None:
    assert read_starts(run_dir.path) is not None
    file = run_dir.path / "starts.json"
    elsewhere = tmp_path / "elsewhere.json"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert read_starts(run_dir.path) is None
    file.unlink()
    os.mkfifo(file)
    assert read_starts(run_dir.path) is None


def test_a_broken_row_of_the_journal_begins_anew(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    for broken in ("", "{", '{"v": 9, "counts": {"restart": 4}}', '{"v": 1, "counts": 3}'):
        journal.kv_set(KEY, broken)
        found = watcher(journal, run_dir)
        assert found.found(running=True, restarts=0, overridden=False) == 1
        assert found.counts == counts(operator=1)


def test_half_a_record_of_an_end_is_passed_over(journal: Journal, run_dir: RunDir) -> None:
    run_dir.start()
    (run_dir.path / "exits.jsonl").write_text('{"v": 1, "seq"')
    with (run_dir.path / "exits.jsonl").open("a") as file:
        file.write("\n")
    run_dir.end(asked=True, reason="asked: restart (planned: every Sunday)")
    run_dir.start()
    found = watcher(journal, run_dir)
    assert found.found(running=True, restarts=1, overridden=False) == 2
    assert found.counts == counts(operator=1, planned=1)


def test_without_a_run_dir_events_are_all_there_is(journal: Journal) -> None:
    found = StartCounts("far", journal, None)
    assert found.began("restart") == 1
    assert StartCounts("far", journal, None).counts == counts(restart=1)


# -- reasons -----------------------------------------------------------------------------------------------------

ENDS = {
    "death": ("killed by SIGKILL", False),
    "asked": ("asked: restart (new weights)", True),
    "planned": ("asked: restart (planned: every Sunday)", True),
    "outside": ("stopped-from-outside", False),
}


@pytest.mark.parametrize(
    ("before", "overridden", "repairing", "reason"),
    [
        ("death", False, False, "restart"),
        ("death", False, True, "restart"),
        ("death", True, True, "remedy"),
        ("asked", False, False, "operator"),
        ("asked", True, False, "operator"),
        ("asked", False, True, "restart"),  # the agent ended a stalled server
        ("asked", True, True, "remedy"),
        ("planned", False, False, "planned"),
        ("outside", False, False, "operator"),
        (None, False, False, "restart"),
        (None, True, False, "remedy"),
    ],
)
def test_why_a_server_was_started(before: str | None, overridden: bool, repairing: bool, reason: str) -> None:
    end = None
    if before is not None:
        said, asked = ENDS[before]
        end = Exit(
            seq=1, pid=1, command_hash="c", started_at="", ready_at=None, exited_at="", code=0, signal=None,
            asked=asked, reason=said, oom_kill_delta=None, log_offset=0,
        )  # fmt: skip
    assert start_reason(first=False, overridden=overridden, before=end, repairing=repairing) == reason
    assert start_reason(first=True, overridden=overridden, before=end) == "operator"


def test_the_reasons_are_the_published_ones(journal: Journal, run_dir: RunDir) -> None:
    assert own_metrics()["vllm_agent_server_starts_total"].values["reason"] == REASONS
    metrics = AgentMetrics(SystemClock(), strict=True)
    metrics.set_starts("chat", watcher(journal, run_dir).counts)
    named = [one for one in metrics.samples() if one.name == "vllm_agent_server_starts_total"]
    assert {one.labels["reason"]: one.value for one in named} == dict.fromkeys(REASONS, 0.0)


# -- the real launcher ---------------------------------------------------------------------------------------------


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Factory]:
    factory = Factory(tmp_path)
    yield factory
    factory.clean()


async def meet(journal: Journal, launched: Launched) -> StartCounts:
    """A watcher begins its life and meets the launcher."""
    status = await launched.status()
    found = StartCounts("chat", journal, launched.run_dir)
    found.found(running=status["child_pid"] is not None, restarts=int(str(status["restarts"])), overridden=False)
    return found


async def test_what_a_real_launcher_writes_is_understood(launch: Factory, journal: Journal) -> None:
    def number() -> int:
        seen = read_starts(launched.run_dir)
        return seen.number if seen is not None else 0

    launched = launch()
    await launched.event("started")
    assert (await meet(journal, launched)).counts == counts(operator=1)
    await launched.client.call("restart", reason="new weights")
    await until(lambda: number() == 2)
    os.kill(int(str((await launched.status())["child_pid"])), signal.SIGKILL)
    await until(lambda: number() == 3)
    assert (await meet(journal, launched)).counts == counts(operator=2, restart=1)
    launched.process.kill()
    await launched.ended()
    again = launch(run_dir=launched.run_dir)
    await again.event("started")
    await until(lambda: number() == 4)
    assert (await meet(journal, again)).counts == counts(operator=3, restart=1)
    assert (await meet(journal, again)).counts == counts(operator=3, restart=1)


# -- the watcher itself ------------------------------------------------------------------------------------------------


def shown(watch: Watching) -> dict[str, int]:
    """What the metric says."""
    name = "vllm_agent_server_starts_total"
    return {one.labels["reason"]: int(one.value) for one in watch.metrics.samples() if one.name == name}


async def test_the_watcher_shows_each_start_once_over_its_own_restarts(tmp_path: Path) -> None:
    async with serving() as server, FakeLauncher(tmp_path / "run") as launcher:
        launcher.url = server.url
        launcher.start()
        launcher.print(READY)
        launcher.ready()
        spec = ServerSpec(name="run", run_dir=tmp_path / "run")
        for _ in range(2):
            async with watching(spec, tmp_path / "state") as watch:
                await watch.state(State.SERVING)
                assert shown(watch) == counts(operator=1)
        launcher.end(0, asked=True, reason="asked: restart (planned: every Sunday)")
        launcher.start()  # no watcher lives
        launcher.ready()
        async with watching(spec, tmp_path / "state") as watch:
            await watch.state(State.SERVING)
            assert shown(watch) == counts(operator=1, planned=1)
            launcher.on_restart = lambda: (launcher.start(), launcher.print(READY), launcher.ready())
            launcher.end(1)
            await watch.closed()
            assert shown(watch) == counts(operator=1, planned=1, restart=1)
            launcher.end(0, asked=True, reason="asked: restart (new weights)")
            launcher.start()
            await watch.until(lambda: shown(watch) == counts(operator=2, planned=1, restart=1))
