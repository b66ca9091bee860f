"""Which exit means what, and when the next start may be."""

from __future__ import annotations

import pytest

from agent.launch.policy import (
    Ending,
    ExitKind,
    Verdict,
    backoff,
    classify,
    decide,
    describe,
    own_delay,
    recent,
)


@pytest.mark.parametrize(
    ("code", "asked", "line", "kind"),
    [
        (0, None, False, ExitKind.FAILURE),  # vLLM exits 0 when its engine dies
        (0, "stop", False, ExitKind.ASKED),
        (-9, "restart", False, ExitKind.ASKED),
        (1, None, False, ExitKind.FAILURE),
        (1, None, True, ExitKind.FAILURE),
        (2, None, False, ExitKind.USAGE),
        (0, None, True, ExitKind.OUTSIDE),
        (-15, None, False, ExitKind.OUTSIDE),
        (-2, None, False, ExitKind.OUTSIDE),
        (-9, None, False, ExitKind.FAILURE),
        (-6, None, True, ExitKind.FAILURE),
    ],
)
def test_an_exit_is_judged_by_what_was_asked(code: int, asked: str | None, line: bool, kind: ExitKind) -> None:
    assert classify(Ending.from_wait(code, asked, line)) is kind


def test_the_reason_names_the_signal() -> None:
    assert describe(Ending.from_wait(-9, None, False)) == "killed by SIGKILL"
    assert describe(Ending.from_wait(0, None, False)) == "exit code 0 that nobody asked for"
    assert describe(Ending.from_wait(0, "stop", False)) == "asked: stop"


def test_backoff_doubles_to_a_minute() -> None:
    assert [backoff(n) for n in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_the_first_own_restart_leaves_a_watcher_two_seconds() -> None:
    assert own_delay(ExitKind.FAILURE, 1) == 2.0
    assert own_delay(ExitKind.FAILURE, 4) == 8.0
    assert own_delay(ExitKind.OUTSIDE, 0) == 2.0
    assert own_delay(ExitKind.ASKED, 9) == 0.0


def test_five_failures_give_up_or_open_the_breaker() -> None:
    assert decide(ExitKind.FAILURE, 4, watcher=False, flags_overridden=False) is Verdict.RESTART
    assert decide(ExitKind.FAILURE, 5, watcher=False, flags_overridden=False) is Verdict.GIVE_UP
    assert decide(ExitKind.FAILURE, 5, watcher=True, flags_overridden=False) is Verdict.BREAKER


def test_a_usage_error_is_retried_only_to_drop_overridden_flags() -> None:
    assert decide(ExitKind.USAGE, 1, watcher=True, flags_overridden=False) is Verdict.LEAVE_USAGE
    assert decide(ExitKind.USAGE, 1, watcher=False, flags_overridden=True) is Verdict.RESTART


def test_old_failures_do_not_count() -> None:
    assert recent((99.0, 100.5, 950.0), 1000.0) == (100.5, 950.0)
