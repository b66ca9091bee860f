"""A stalled server becomes an incident at once; it is repaired after half a minute, and left alone where it goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

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
from tests.watching.conftest import Served, launched
from tests.watching.launcher import Document
from tests.watching.server import Answers
from tests.watching.watcher import QUIET

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
