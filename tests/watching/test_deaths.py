"""A death under the watcher's eyes: opened at once, named from its own log, repaired once."""

from __future__ import annotations

import asyncio

import pytest

from agent.model import IncidentState, State
from tests.watching.conftest import ARGUMENTS, DEAD, FATAL, OOM, PTXAS, READY, Served


async def test_a_death_is_held_named_restarted_and_proven(served: Served) -> None:
    served.launcher.print(DEAD)
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert (incident.state, incident.fault) == (IncidentState.RESOLVED, "engine-dead")
    assert served.launcher.asked("hold")[0]["exit_seq"] == 1
    assert [call["incident"] for call in served.launcher.asked("restart")] == [incident.id]
    assert served.watch.watch.evidence.start_seq() == 2


async def test_the_log_may_come_later_than_the_exit(served: Served) -> None:
    served.launcher.slow_log.shut = True
    served.launcher.print(PTXAS)
    served.launcher.end(0)
    await served.watch.opened()
    await asyncio.sleep(0.2)
    served.launcher.slow_log.open()
    await served.watch.until(lambda: served.watch.incidents[0].fault == "triton-ptxas")


async def test_lines_of_the_next_start_never_explain_the_last_death(served: Served) -> None:
    """The news is held back while the log runs on: exit, start and the next start's error arrive in one piece."""
    served.launcher.slow_events.shut = True
    served.launcher.end(0)
    served.launcher.start()
    served.launcher.print(ARGUMENTS + PTXAS)
    await served.watch.until(lambda: served.watch.watch.log.offset == served.launcher.log_end)
    assert not served.watch.watch.log.saw("triton-ptxas"), "what is present is said by the events"
    served.launcher.slow_events.open()
    await served.watch.until(lambda: served.watch.incidents)
    await served.watch.until(lambda: served.watch.watch.log.saw("triton-ptxas"))
    assert served.watch.incidents[0].fault == "engine-dead"
    settings = served.watch.watch.log.session.settings()
    assert settings.max_num_seqs is not None and settings.max_num_seqs.value == 16


async def test_the_last_lines_of_a_start_that_come_late_stay_its_own(served: Served) -> None:
    """The log is held back over exit and start; the death is then told without its cause, never with a wrong one."""
    served.launcher.slow_log.shut = True
    served.launcher.print(OOM)
    served.launcher.end(0)
    served.launcher.start()
    served.launcher.print(READY)
    await served.watch.until(lambda: served.watch.watch.evidence.start_seq() == 2)
    served.launcher.slow_log.open()
    await served.watch.until(lambda: served.watch.watch.log.offset == served.launcher.log_end)
    assert not served.watch.watch.log.saw("oom-serving")
    assert served.watch.watch.log.session.started


async def test_a_fatal_line_opens_before_the_exit_and_the_exit_belongs_to_it(served: Served) -> None:
    served.launcher.print(FATAL + OOM)
    early = await served.watch.opened()
    assert early.exited_at is None
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert len(served.watch.incidents) == 1
    assert incident.id == early.id and incident.fault == "oom-serving" and incident.exited_at is not None


async def test_a_fatal_line_after_which_it_goes_on_serving_is_closed_without_an_action(served: Served) -> None:
    served.launcher.print(FATAL)
    await served.watch.opened()
    served.watch.clock.leap(31)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.RESOLVED and incident.actions == ()
    assert "went on serving" in str(incident.note)


async def test_a_fatal_line_with_a_dead_engine_and_no_exit_is_repaired_after_the_grace(served: Served) -> None:
    served.launcher.print(FATAL)
    await served.watch.opened()
    served.server.health = 503
    await served.watch.state(State.DEAD)

    def restart() -> None:
        served.launcher.end(0, asked=True, reason="asked: restart")
        served.server.health = 200
        served.come_back()

    served.launcher.on_restart = restart
    served.watch.clock.leap(31)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.RESOLVED
    assert len(served.launcher.asked("restart")) == 1


async def test_a_dead_engine_that_only_health_tells_of_is_an_incident(served: Served) -> None:
    served.server.health = 503
    incident = await served.watch.opened()
    assert incident.fault == "engine-dead" and incident.evidence[0].source == "health"


async def test_a_death_during_a_repair_belongs_to_it(served: Served) -> None:
    tries = iter((False, True))

    def restart() -> None:
        served.launcher.start()
        if next(tries):
            served.launcher.print(READY)
            served.launcher.ready()
        else:
            served.launcher.print(DEAD)
            served.launcher.end(1)

    served.launcher.on_restart = restart
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert len(served.watch.incidents) == 1
    assert incident.state is IncidentState.RESOLVED
    assert [action.state.value for action in incident.actions] == ["failed", "verified"]


async def test_only_the_death_that_opened_an_incident_is_timed(served: Served) -> None:
    tries = iter((False, True))
    served.launcher.on_restart = lambda: (
        served.come_back()
        if next(tries)
        else (
            served.launcher.start(),
            served.launcher.end(1),
        )
    )
    served.launcher.end(0)
    await served.watch.closed()
    assert served.watch.metrics.registry.get_sample_value("vllm_agent_time_to_open_seconds_count") == 1


@pytest.mark.parametrize("printed", ["", FATAL])
async def test_an_asked_end_is_no_death(served: Served, printed: str) -> None:
    served.launcher.event("stopping", by="stop")
    await served.watch.state(State.DRAINING)
    served.launcher.print(printed)
    served.launcher.end(0, asked=True, reason="asked: stop")
    await served.watch.state(State.STOPPED)
    assert served.watch.incidents == []


async def test_an_asked_end_after_a_fatal_line_closes_what_the_line_opened(served: Served) -> None:
    served.launcher.print(FATAL)
    await served.watch.opened()
    served.launcher.end(0, asked=True, reason="asked: stop")
    incident = await served.watch.closed()
    assert incident.state is IncidentState.UNRESOLVED and "stopped on request" in str(incident.note)
    assert served.launcher.asked("restart") == []


async def test_a_stop_in_the_middle_of_a_repair_ends_the_repair(served: Served) -> None:
    served.launcher.on_restart = served.launcher.start
    served.launcher.end(0)
    await served.watch.until(lambda: served.watch.watch.evidence.start_seq() == 2)
    served.launcher.event("stopping", by="stop")
    served.launcher.end(0, asked=True, reason="asked: stop")
    incident = await served.watch.closed()
    assert incident.state is IncidentState.UNRESOLVED and "stopped" in str(incident.note)
    assert len(served.launcher.asked("restart")) == 1


async def test_a_stop_from_outside_is_started_again_without_an_incident(served: Served) -> None:
    served.launcher.end(0, reason="stopped-from-outside")
    await served.watch.until(lambda: served.launcher.asked("restart"))
    await served.watch.state(State.SERVING)
    assert served.watch.incidents == []


async def test_a_stop_from_outside_after_a_fatal_line_is_a_death(served: Served) -> None:
    served.launcher.print(FATAL)
    await served.watch.opened()
    served.launcher.end(0, reason="stopped-from-outside")
    assert (await served.watch.closed()).state is IncidentState.RESOLVED


async def test_a_new_start_without_an_exit_settles_what_a_line_had_opened(served: Served) -> None:
    """The launcher was killed and with it the server; its successor tells of no exit."""
    served.launcher.print(FATAL)
    await served.watch.opened()
    served.come_back()
    await served.watch.until(lambda: served.watch.watch.evidence.start_seq() == 2)
    served.watch.clock.leap(31)
    assert (await served.watch.closed()).state is IncidentState.RESOLVED


async def test_frozen_nothing_is_done_and_a_thaw_takes_it_up(served: Served) -> None:
    await served.watch.watch.freeze(True)
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.UNRESOLVED and served.launcher.asked("restart") == []
    await served.watch.watch.freeze(False)
    assert (await served.watch.closed(2)).state is IncidentState.RESOLVED
    assert len(served.launcher.asked("restart")) == 1


async def test_a_launcher_that_refuses_the_restart_leaves_the_incident_to_a_person(served: Served) -> None:
    served.launcher.refusals["restart"] = "breaker-open"
    served.launcher.end(0)
    incident = await served.watch.closed()
    assert incident.state is IncidentState.UNRESOLVED
    assert incident.note


async def test_an_exit_that_cannot_be_read_is_a_death_nevertheless(served: Served) -> None:
    served.launcher.pid = None
    served.launcher.event("exit", exit={"v": 9}, asked=False)
    incident = await served.watch.opened()
    assert incident.fault == "engine-dead"
    assert "could not be read" in served.watch.said.getvalue()
