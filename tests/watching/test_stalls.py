"""A stalled server becomes an incident at once; it is repaired after half a minute, and left alone where it goes on."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from agent.config import Config
from agent.errors import ConflictError
from agent.model import (
    ActionState,
    Cause,
    Confidence,
    Domain,
    Evidence,
    Finding,
    IncidentState,
    Mode,
    Retry,
    Severity,
    State,
)
from agent.watch.hangs import CONFIRM_SECONDS, joined
from agent.watch.world import ServerSpec
from tests.watching.conftest import READY, Served, launched
from tests.watching.launcher import Document, FakeLauncher
from tests.watching.server import Answers, serving
from tests.watching.watcher import QUIET, watching

ENGINE, WORKER = 4100, 4101
NCCL = "(Worker pid=4101) ERROR 11-30 20:00:05 [multiproc_executor.py:231] RPC call to execute_model timed out.\n"


def tree(state: str) -> list[Document]:
    """The server's processes, its worker in ``state``."""
    titles = (
        (4000, 1, "vllm serve tiny", "S"),
        (ENGINE, 4000, "VLLM::EngineCore", "S"),
        (WORKER, ENGINE, "VLLM::Worker", state),
    )
    return [
        {"pid": pid, "ppid": parent, "cmdline": title, "state": letter, "cpu_seconds": 3.0, "rss_bytes": 1}
        for pid, parent, title, letter in titles
    ]


def load(server: Answers, running: int = 2, waiting: int = 1) -> None:
    server.series = "".join(
        f'vllm:num_requests_{name}{{engine="0"}} {count}\n'
        for name, count in (("running", running), ("waiting", waiting))
    )


async def stall(served: Served, state: str = "T") -> None:
    """Work, a worker that stands still, and nothing that moves."""
    load(served.server)
    served.server.stuck = True
    served.launcher.processes = tree(state)
    await pass_until(served, lambda: served.watch.watch.evidence.state() is State.STALLED)


async def step(served: Served) -> None:
    """Three seconds pass, with rounds of their own, so that all of it is watched."""
    seen = served.server.scrapes
    served.watch.clock.leap(3)
    await served.watch.until(lambda: served.server.scrapes >= seen + 2 or served.watch.watch.evidence.ended())


async def pass_until(served: Served, check: Callable[[], bool]) -> None:
    for _ in range(20):
        if check():
            return
        await step(served)
    raise AssertionError(f"{served.watch.watch.evidence.standing}\n{served.watch.said.getvalue()}")


async def confirmed(served: Served) -> None:
    """The half minute in which a stall may still pass, and a little more."""
    for _ in range(int(CONFIRM_SECONDS / 3) + 2):
        await step(served)


def go_on(served: Served) -> None:
    served.server.stuck = False
    served.launcher.processes = tree("S")
    served.server.tokens += 5


def heal_at_restart(served: Served) -> None:
    def restart() -> None:
        assert served.watch.watch.acting, "nobody else should end it now"
        served.launcher.end(None, signal=signal.SIGKILL, asked=True, reason="asked: restart")
        load(served.server, 0, 0)
        served.server.stuck = False
        served.launcher.processes = tree("S")
        served.come_back()

    served.launcher.on_restart = restart


def acting(served: Served) -> list[tuple[object, object]]:
    """What the launcher was told, without repetitions."""
    told = [(one["state"], one["acting"]) for one in served.launcher.asked("verdict")]
    return [one for place, one in enumerate(told) if place == 0 or told[place - 1] != one]


async def test_a_stall_is_an_incident_at_once_with_what_proves_it(served: Served) -> None:
    await stall(served)
    incident = await served.watch.opened()
    assert incident.fault == "engine-hang" and incident.state is IncidentState.OPEN
    assert "2 running and 1 waiting" in incident.summary and f"kill -CONT {WORKER}" in incident.summary
    sources = {one.source for one in incident.evidence}
    assert {"liveness", "processes", "health"} <= sources
    assert any(one.where == "engine 0" and "stalled since" in one.text for one in incident.evidence)
    assert any(one.where == f"pid {WORKER}" and "(state T)" in one.text for one in incident.evidence)
    assert not served.watch.watch.acting and not served.launcher.asked("restart")


async def test_a_lasting_stall_is_repaired_and_proven(served: Served) -> None:
    heal_at_restart(served)
    await stall(served)
    first = await served.watch.opened()
    await confirmed(served)
    incident = await served.watch.closed()
    assert incident.id == first.id and incident.state is IncidentState.RESOLVED
    assert incident.fault == "engine-hang"
    assert [(one.action, one.state) for one in incident.actions] == [("restart", ActionState.VERIFIED)]
    assert len(served.launcher.asked("restart")) == 1
    assert ("stalled", True) not in acting(served)[: acting(served).index(("stalled", False)) + 1]


async def test_an_engine_that_goes_on_in_time_is_left_alone(served: Served) -> None:
    await stall(served)
    await served.watch.opened()
    go_on(served)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.RESOLVED and incident.actions == ()
    assert "went on by itself" in str(incident.note)
    await confirmed(served)
    assert not served.launcher.asked("restart") and len(served.watch.incidents) == 1


async def test_what_the_log_names_wins_and_keeps_the_evidence(served: Served) -> None:
    heal_at_restart(served)
    await stall(served)
    await served.watch.opened()
    served.launcher.print(NCCL)
    await confirmed(served)
    incident = await served.watch.closed()
    assert incident.fault == "engine-hang" and {"log", "liveness"} <= {one.source for one in incident.evidence}


async def test_a_process_under_a_debugger_is_not_ended(served: Served) -> None:
    heal_at_restart(served)
    await stall(served, "t")
    await confirmed(served)
    active = served.watch.watch.keeper.active
    assert active is not None and f"pid {WORKER}" in str(active.note) and "debugger" in str(active.note)
    assert not served.launcher.asked("restart")
    served.launcher.processes = tree("T")
    await confirmed(served)
    assert (await served.watch.closed()).state is IncidentState.RESOLVED


async def test_frozen_it_is_said_and_nothing_is_done_until_the_thaw(served: Served) -> None:
    heal_at_restart(served)
    await served.watch.watch.freeze(True)
    await stall(served)
    await confirmed(served)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.UNRESOLVED and "frozen" in str(incident.note)
    assert not served.launcher.asked("restart") and not served.watch.watch.acting
    await confirmed(served)
    assert len(served.watch.incidents) == 1, "one stall is said once"
    await served.watch.watch.freeze(False)
    await served.watch.until(lambda: len(served.watch.incidents) == 2)
    await confirmed(served)
    assert (await served.watch.closed(2)).state is IncidentState.RESOLVED


async def test_silence_without_evidence_opens_nothing(served: Served) -> None:
    load(served.server)
    served.server.stuck = True
    served.launcher.processes = tree("S")
    await pass_until(served, lambda: served.watch.watch.evidence.state() is State.UNKNOWN)
    assert served.watch.incidents == []


async def test_livez_may_fail_while_a_person_is_asked_and_an_engine_that_goes_on_voids_the_question(
    tmp_path: Path,
) -> None:
    asks = msgspec.structs.replace(QUIET, actions={"restart": Mode.APPROVE})
    async with launched(tmp_path, asks) as served:
        await stall(served)
        await confirmed(served)
        await served.watch.until(
            lambda: served.watch.incidents and served.watch.incidents[0].state is IncidentState.AWAITING_APPROVAL
        )
        assert served.watch.watch.repairing and not served.watch.watch.acting
        go_on(served)
        incident = await served.watch.closed()
        assert incident.state is IncidentState.RESOLVED and "went on by itself" in str(incident.note)
        assert [one.state for one in incident.actions] == [ActionState.INTERRUPTED]
        assert not served.launcher.asked("restart")


async def test_in_a_dry_run_the_restart_is_only_proposed(tmp_path: Path) -> None:
    async with launched(tmp_path, msgspec.structs.replace(QUIET, dry_run=True)) as served:
        await stall(served)
        await confirmed(served)
        incident = await served.watch.closed()
        assert incident.state is IncidentState.UNRESOLVED
        assert {one.state for one in incident.actions} == {ActionState.PROPOSED}
        assert not served.launcher.asked("restart") and not served.watch.watch.acting


# -- a stall over a restart of the watcher ----------------------------------------------------------------------


@asynccontextmanager
async def left_stalled(folder: Path, settings: Config = QUIET, *, asked: bool = False) -> AsyncIterator[Served]:
    """A launcher and a server whose watcher ended while a stall was being confirmed, or (``asked``) after it."""
    async with serving() as server, FakeLauncher(folder / "run") as launcher:
        launcher.url = server.url
        launcher.start()
        launcher.print(READY)
        launcher.ready()
        spec = ServerSpec(name="run", run_dir=folder / "run")
        async with watching(spec, folder / "state", settings=settings) as watch:
            await watch.state(State.SERVING)
            served = Served(launcher, server, watch, spec)
            await stall(served)
            await watch.opened()
            if asked:
                await confirmed(served)
                await watch.until(lambda: watch.incidents[0].state is IncidentState.AWAITING_APPROVAL)
        yield served


@asynccontextmanager
async def next_life(left: Served, folder: Path, settings: Config = QUIET) -> AsyncIterator[Served]:
    async with watching(left.spec, folder / "state", settings=settings) as watch:
        served = Served(left.launcher, left.server, watch, left.spec)
        left.launcher.on_restart = served.come_back
        yield served


async def test_a_stall_that_passed_while_no_watcher_lived_is_closed_as_such(tmp_path: Path) -> None:
    async with left_stalled(tmp_path) as left:
        go_on(left)
        load(left.server, 0, 0)
        async with next_life(left, tmp_path) as served:
            await served.watch.state(State.SERVING)
            await confirmed(served)
            incident = await served.watch.closed()
            assert incident.state is IncidentState.RESOLVED and incident.actions == ()
            assert "went on by itself" in str(incident.note) and "launcher" not in str(incident.note)
            assert not left.launcher.asked("restart")


async def test_a_stall_is_confirmed_anew_after_a_restart_of_the_watcher_and_then_repaired(tmp_path: Path) -> None:
    async with left_stalled(tmp_path) as left, next_life(left, tmp_path) as served:
        heal_at_restart(served)
        await served.watch.opened()
        for _ in range(20):
            if served.watch.watch.evidence.state() is State.STALLED:
                break
            assert not left.launcher.asked("restart"), "silence alone is no evidence, also in the next life"
            await step(served)
        await confirmed(served)
        incident = await served.watch.closed()
        assert len(served.watch.incidents) == 1 and len(left.launcher.asked("restart")) == 1
        assert incident.state is IncidentState.RESOLVED and incident.fault == "engine-hang"


async def test_a_server_that_was_started_again_while_no_watcher_lived_is_proven_by_its_start(tmp_path: Path) -> None:
    async with left_stalled(tmp_path) as left:
        left.launcher.end(None, signal=signal.SIGKILL)
        load(left.server, 0, 0)
        go_on(left)
        left.come_back()
        tokens = left.server.tokens
        async with next_life(left, tmp_path) as served:
            incident = await served.watch.closed()
            assert incident.state is IncidentState.RESOLVED and "serving after" in str(incident.note)
            assert left.server.tokens > tokens, "the new start was asked"


@pytest.mark.parametrize("goes_on", [True, False])
async def test_who_was_asked_about_a_stall_may_answer_the_next_watcher(tmp_path: Path, goes_on: bool) -> None:
    asks = msgspec.structs.replace(QUIET, actions={"restart": Mode.APPROVE})
    async with left_stalled(tmp_path, asks, asked=True) as left:
        if goes_on:
            go_on(left)
            load(left.server, 0, 0)
        async with next_life(left, tmp_path, asks) as served:
            heal_at_restart(served)
            if not goes_on:
                await pass_until(served, lambda: served.watch.watch.evidence.state() is State.STALLED)
                await served.watch.until(lambda: _approve(served))
            else:
                await confirmed(served)
            incident = await served.watch.closed()
            assert incident.state is IncidentState.RESOLVED
            state = ActionState.INTERRUPTED if goes_on else ActionState.VERIFIED
            assert [one.state for one in incident.actions] == [state]
            assert len(left.launcher.asked("restart")) == (0 if goes_on else 1)


def _approve(served: Served) -> bool:
    try:
        served.watch.watch.approve(served.watch.incidents[0].actions[0].id, "somebody")
    except ConflictError:
        return False
    return True


async def test_what_a_debugger_lets_go_gets_the_half_minute_again(served: Served) -> None:
    await stall(served, "t")
    await confirmed(served)
    served.launcher.processes = tree("T")
    for _ in range(3):
        await step(served)
    assert not served.launcher.asked("restart"), "whoever held it may still let it go on"
    go_on(served)
    assert "went on by itself" in str((await served.watch.closed()).note)


@pytest.mark.parametrize(
    ("fault", "confidence", "severity", "wins"),
    [
        ("gpu-lost", Confidence.LIKELY, Severity.CRITICAL, True),
        ("gpu-lost", Confidence.POSSIBLE, Severity.CRITICAL, False),
        ("gpu-lost", Confidence.CERTAIN, Severity.WARNING, False),
        ("engine-hang", Confidence.POSSIBLE, Severity.WARNING, True),
    ],
)
def test_which_cause_of_the_log_explains_a_stall(
    fault: str, confidence: Confidence, severity: Severity, wins: bool
) -> None:
    hang = cause("engine-hang", Confidence.LIKELY, Severity.CRITICAL, "liveness")
    named = joined(cause(fault, confidence, severity, "log"), hang)
    assert named is not None
    assert named.finding.fault == (fault if wins else "engine-hang")
    assert named.finding.severity is Severity.CRITICAL and named.finding.confidence is Confidence.LIKELY
    assert [one.source for one in named.finding.evidence] == (["log", "liveness"] if wins else ["liveness"])
    assert joined(None, hang) is hang and joined(None, None) is None


def cause(fault: str, confidence: Confidence, severity: Severity, source: str) -> Cause:
    seen = (Evidence(source=source, where="x:1", text="seen"),)
    finding = Finding(fault=fault, confidence=confidence, severity=severity, summary="s", evidence=seen)
    return Cause(finding=finding, retry=Retry.MAY, domain=Domain.UNKNOWN)
