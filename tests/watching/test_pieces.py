"""The small pieces: supervised tasks, the log cut by starts, what is said and counted."""

from __future__ import annotations

import asyncio
import io

import msgspec

from agent.diagnose import Signal
from agent.model import Action, ActionState, Confidence, Incident, IncidentState, Mode, Proof, Severity
from agent.notify import Dispatcher, Subject
from agent.serve import AgentMetrics
from agent.watch.narrate import Narrator
from agent.watch.report import Report
from agent.watch.startlog import StartLog
from agent.watch.tasks import OneTask, every, together
from tests.watching.conftest import ARGUMENTS, FATAL, PTXAS, READY
from tests.watching.watcher import CATALOGUE, LeapClock

OPEN = Incident(
    id="i-1",
    server="chat",
    fault="engine-dead",
    confidence=Confidence.POSSIBLE,
    severity=Severity.CRITICAL,
    state=IncidentState.OPEN,
    opened_at="2026-01-01T00:00:01.000Z",
    exited_at="2026-01-01T00:00:00.000Z",
    summary="it ended",
)
RESTART = Action(
    id="a-1",
    incident="i-1",
    action="restart",
    change="restart with the same command",
    mode=Mode.AUTO,
    state=ActionState.RUNNING,
    created_at="2026-01-01T00:00:01.000Z",
)


def start_log() -> tuple[StartLog, list[Signal]]:
    told: list[Signal] = []
    return StartLog(CATALOGUE, "chat log", told.append), told


# -- the log ------------------------------------------------------------------------------------------------


def test_a_chunk_goes_to_the_start_that_it_names() -> None:
    log, told = start_log()
    log.begin(0)
    log.feed(READY.encode(), offset=0, start=0)
    second = len(READY)
    log.feed(PTXAS.encode(), offset=second, start=second)
    assert told == [] and not log.saw("triton-ptxas") and log.session.started
    log.begin(second)
    assert [signal.fault for signal in told] == ["triton-ptxas"] and not log.session.started


def test_bytes_of_an_old_start_that_come_late_are_no_news() -> None:
    log, told = start_log()
    log.begin(0)
    log.begin(100)
    log.feed(PTXAS.encode(), offset=0, start=0)
    log.feed(ARGUMENTS.encode(), offset=100, start=100)
    assert told == [] and log.signals == []
    assert log.session.settings().max_num_seqs is not None


def test_a_launcher_that_names_no_starts_is_cut_at_the_news() -> None:
    log, _ = start_log()
    log.feed(PTXAS.encode(), offset=0)
    log.begin()
    log.feed(READY.encode())
    assert not log.saw("triton-ptxas") and log.session.started


def test_history_is_evidence_and_no_news() -> None:
    log, told = start_log()
    log.feed(PTXAS.encode(), history=True)
    assert told == [] and log.saw("triton-ptxas")


async def test_waiting_for_an_offset_ends_when_it_was_fed_or_the_time_is_over() -> None:
    log, _ = start_log()
    assert not await log.reach(5, 0.01)
    waiters = asyncio.gather(log.reach(3, 5), log.reach(5, 5))
    await asyncio.sleep(0)
    log.feed(b"abc\n")
    log.feed(b"d\n")
    assert await waiters == [True, True]


def test_a_line_is_not_glued_over_lost_bytes() -> None:
    log, _ = start_log()
    log.feed(b"(EngineCore pid=2) INFO 11-30 20:00:05 [core.py:1] half a l", offset=0)
    log.feed(PTXAS.encode(), offset=9000, dropped=8900)
    assert log.saw("triton-ptxas") and log.session.lines == 2


def test_a_flood_of_anchors_is_bounded() -> None:
    log, _ = start_log()
    for number in range(2000):
        log.feed(FATAL.replace("pid=2", f"pid={number}").encode())
    for number in range(10):
        log.begin(number * 10**6)
    assert len(log.signals) <= 256 and len(log._parts) <= 3


# -- tasks --------------------------------------------------------------------------------------------------


async def test_a_task_that_fails_is_said_and_begun_again_and_the_others_go_on() -> None:
    clock, said, rounds = LeapClock(), list[str](), list[str]()

    async def fails() -> None:
        rounds.append("fails")
        if rounds.count("fails") == 1:
            raise ValueError("once")
        await asyncio.Event().wait()

    async def lasts() -> None:
        rounds.append("lasts")
        await asyncio.Event().wait()

    work = asyncio.create_task(together({"one": fails, "two": lasts}, clock, said.append))
    await asyncio.sleep(0.01)
    clock.leap(2)
    await asyncio.sleep(0.01)
    assert sorted(rounds) == ["fails", "fails", "lasts"]
    assert len(said) == 1 and "ValueError: once (test_pieces.py:" in said[0]
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1, "a task outlived its owner"


async def test_a_changed_period_counts_from_the_next_round() -> None:
    clock, rounds = LeapClock(), list[float]()
    period = 100.0

    async def body() -> None:
        rounds.append(clock.monotonic())

    work = asyncio.create_task(every(lambda: period, body, clock))
    await asyncio.sleep(0.01)
    period = 1.0
    clock.leap(100)
    await asyncio.sleep(0.01)
    clock.leap(1)
    await asyncio.sleep(0.01)
    work.cancel()
    assert len(rounds) == 3


async def test_a_task_that_swallows_a_cancellation_is_ended_nevertheless() -> None:
    swallowed: list[int] = []

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(9)
            except asyncio.CancelledError:
                swallowed.append(1)
                if len(swallowed) > 1:
                    raise

    one = OneTask(lambda error: None)
    one.start(deaf)
    await asyncio.sleep(0.01)
    await one.stop()
    assert len(swallowed) == 2 and not one.running


async def test_work_that_breaks_off_is_handed_on_and_makes_room_for_other_work() -> None:
    failures: list[Exception] = []
    one = OneTask(failures.append)

    async def breaks() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    assert one.start(breaks) and not one.start(breaks)
    await asyncio.sleep(0.01)
    assert [str(error) for error in failures] == ["broken"] and not one.running
    assert one.start(asyncio.Event().wait)
    await one.stop()
    assert not one.running and len(failures) == 1


# -- what is said and counted -------------------------------------------------------------------------------


class Nobody(Dispatcher):
    """No notifiers."""

    def __init__(self) -> None: ...

    def publish(self, subject: Subject) -> None: ...

    def remind(self, subject: Subject) -> None: ...


def report() -> tuple[Report, AgentMetrics, io.StringIO]:
    clock, said = LeapClock(), io.StringIO()
    metrics = AgentMetrics(clock)
    return Report(Narrator(said, clock), metrics, Nobody(), clock), metrics, said


def tell(one: Report, *states: IncidentState, **changes: object) -> None:
    for state in states:
        one.incident(msgspec.structs.replace(OPEN, state=state, **changes))


def test_an_incident_is_open_from_its_first_moment_and_counted_once_under_its_cause() -> None:
    one, metrics, _ = report()
    get = metrics.registry.get_sample_value
    tell(one, IncidentState.OPEN)
    assert get("vllm_agent_incidents_open", {"server": "chat"}) == 1
    named = {"fault": "oom-serving", "actions": (RESTART,)}
    tell(one, IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.VERIFYING, **named)
    proven = msgspec.structs.replace(RESTART, state=ActionState.VERIFIED)
    tell(one, IncidentState.RESOLVED, fault="oom-serving", actions=(proven,), resolved_at="2026-01-01T00:00:09.000Z")
    labels = {"server": "chat", "class": "oom-serving"}
    assert get("vllm_agent_incidents_total", {**labels, "outcome": "opened"}) == 1
    assert get("vllm_agent_incidents_total", {**labels, "outcome": "resolved"}) == 1
    assert get("vllm_agent_incidents_total", {"server": "chat", "class": "engine-dead", "outcome": "opened"}) is None
    assert get("vllm_agent_incidents_open", {"server": "chat"}) == 0
    assert get("vllm_agent_actions_total", {"server": "chat", "action": "restart", "outcome": "verified"}) == 1
    assert get("vllm_agent_time_to_repair_seconds_sum") == 9


def test_an_incident_closed_at_once_was_opened_too_and_repaired_nothing() -> None:
    one, metrics, _ = report()
    tell(one, IncidentState.OPEN, IncidentState.RESOLVED, resolved_at="2026-01-01T00:00:09.000Z")
    labels = {"server": "chat", "class": "engine-dead"}
    assert metrics.registry.get_sample_value("vllm_agent_incidents_total", {**labels, "outcome": "opened"}) == 1
    assert metrics.registry.get_sample_value("vllm_agent_time_to_repair_seconds_count") == 0


def test_what_is_remembered_to_say_and_count_once_is_forgotten_at_the_end() -> None:
    one, _, _ = report()
    for number in range(50):
        done = msgspec.structs.replace(RESTART, id=f"a-{number}", state=ActionState.VERIFIED)
        for state in (IncidentState.OPEN, IncidentState.VERIFYING, IncidentState.RESOLVED):
            one.incident(msgspec.structs.replace(OPEN, id=f"i-{number}", state=state, actions=(done,)))
    assert not one._finished and not one._named and not one._open["chat"] and not one._narrator._said
    assert not one._narrator._reasons


def test_what_was_said_is_not_said_again_and_a_closed_terminal_is_no_end() -> None:
    one, _, said = report()
    tell(one, IncidentState.OPEN, IncidentState.OPEN, IncidentState.OPEN)
    assert said.getvalue().count("INCIDENT i-1") == 1
    said.close()
    tell(one, IncidentState.RESOLVED)


def test_a_waiting_action_says_how_to_decide_it() -> None:
    one, _, said = report()
    waits = msgspec.structs.replace(RESTART, state=ActionState.AWAITING_APPROVAL, why=("KV cache too small",))
    tell(one, IncidentState.AWAITING_APPROVAL, actions=(waits,))
    assert "agent approve a-1" in said.getvalue() and "KV cache too small" in said.getvalue()


def test_the_arithmetic_is_said_once_and_what_the_proofs_say_is_not_said_again() -> None:
    one, _, said = report()
    proof = Proof(kind="serving", within_seconds=60, passed=True, detail="serving after 0.6 s")
    asked = msgspec.structs.replace(
        RESTART, state=ActionState.AWAITING_APPROVAL, why=("pool too small",), cost="slower"
    )
    tell(one, IncidentState.AWAITING_APPROVAL, actions=(asked,))
    running = msgspec.structs.replace(asked, state=ActionState.RUNNING)
    done = msgspec.structs.replace(
        asked, state=ActionState.VERIFIED, proof=(proof,), outcome="serving after 0.6 s", change="shorter context"
    )
    tell(one, IncidentState.ACTING, actions=(running,))
    tell(one, IncidentState.RESOLVED, actions=(done,), note="shorter context: serving after 0.6 s")
    text = said.getvalue()
    assert text.count("pool too small") == 1 and text.count("serving after 0.6 s") == 1
    assert "cost: slower" in text and text.rstrip().endswith("repaired and proven: shorter context")


def test_an_outcome_that_says_more_than_its_proofs_is_said() -> None:
    one, _, said = report()
    proof = Proof(kind="serving", within_seconds=60, passed=False, detail="it died again")
    back = msgspec.structs.replace(
        RESTART, state=ActionState.ROLLED_BACK, proof=(proof,), outcome="it died again; rolled back"
    )
    tell(one, IncidentState.UNRESOLVED, actions=(back,))
    assert "it died again; rolled back" in said.getvalue()
