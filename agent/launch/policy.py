"""How an exit is judged and when the next start may be: pure functions, no clock, no process.

In: how the child ended, what was asked, the times of earlier failures. Out: a word for the exit, a delay, a
decision. Never touches a process or a file, so that every branch is tested with plain numbers.

Why so: vLLM exits 0 when its engine dies (vLLM issue #48966) and 0 after SIGTERM, so the exit code alone
says nothing; what was *asked* does.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

HOLD_WAIT_SECONDS = 2.0
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_MAX_SECONDS = 60.0
WINDOW_SECONDS = 900.0
MAX_FAILURES = 5
USAGE_ERROR = 2
EXIT_GAVE_UP = 70


class ExitKind(str, Enum):
    """What an exit means for the restart policy."""

    ASKED = "asked"
    OUTSIDE = "stopped-from-outside"
    USAGE = "usage-error"
    FAILURE = "failure"


class Verdict(str, Enum):
    """What follows an exit once nobody holds it."""

    RESTART = "restart"
    GIVE_UP = "give-up"
    BREAKER = "breaker"
    LEAVE_USAGE = "leave-usage"


@dataclass(frozen=True)
class Ending:
    """How the child ended. ``asked`` is the word of the request (stop, drain, restart, signal SIGTERM)
    or None.
    """

    code: int | None
    signal: int | None
    asked: str | None
    shutdown_line_seen: bool

    @staticmethod
    def from_wait(exit_code: int, asked: str | None, shutdown_line_seen: bool) -> Ending:
        """``exit_code`` as ``os.waitstatus_to_exitcode`` gives it: negative means a signal."""
        if exit_code < 0:
            return Ending(None, -exit_code, asked, shutdown_line_seen)
        return Ending(exit_code, None, asked, shutdown_line_seen)


def classify(ending: Ending) -> ExitKind:
    """The exit's kind. A SIGTERM or SIGINT that somebody sent straight to vLLM is no failure of vLLM."""
    if ending.asked is not None:
        return ExitKind.ASKED
    if ending.signal in (signal.SIGTERM, signal.SIGINT):
        return ExitKind.OUTSIDE
    if ending.signal is None and ending.code in (0, 143, 130) and ending.shutdown_line_seen:
        return ExitKind.OUTSIDE
    if ending.code == USAGE_ERROR:
        return ExitKind.USAGE
    return ExitKind.FAILURE


def describe(ending: Ending) -> str:
    """The exit record's ``reason``: one short phrase."""
    kind = classify(ending)
    if kind is ExitKind.ASKED:
        return f"asked: {ending.asked}"
    if kind is not ExitKind.FAILURE:
        return str(kind.value)
    if ending.signal is not None:
        return f"killed by {signal_name(ending.signal)}"
    return f"exit code {ending.code} that nobody asked for"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; the bare number where the platform has no name."""
    try:
        return str(signal.Signals(number).name)
    except ValueError:
        return f"signal {number}"


def recent(failures: tuple[float, ...], now: float) -> tuple[float, ...]:
    """The failures (epoch seconds) that still count at ``now``; times from the future count too."""
    return tuple(moment for moment in failures if now - moment < WINDOW_SECONDS)


def backoff(exits_in_a_row: int) -> float:
    """Seconds before own restart number ``exits_in_a_row`` (1 = the first): 1, 2, 4 … 60."""
    if exits_in_a_row <= 0:
        return 0.0
    doublings = min(exits_in_a_row - 1, 10)
    return min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * (1 << doublings))


def own_delay(kind: ExitKind, exits_in_a_row: int) -> float:
    """Seconds from the exit to an own restart: time for a watcher to say ``hold``, and the backoff."""
    if kind is ExitKind.ASKED:
        return 0.0
    if kind is ExitKind.OUTSIDE:
        return HOLD_WAIT_SECONDS
    return max(HOLD_WAIT_SECONDS, backoff(exits_in_a_row))


def decide(kind: ExitKind, failures: int, *, watcher: bool, flags_overridden: bool) -> Verdict:
    """What to do when nobody holds the exit. ``failures`` = those in the window without progress between."""
    if kind is ExitKind.USAGE and not flags_overridden:
        return Verdict.LEAVE_USAGE
    if failures >= MAX_FAILURES:
        return Verdict.BREAKER if watcher else Verdict.GIVE_UP
    return Verdict.RESTART
