"""What the agent itself cannot do is said on its terminal once, and once more when it is over."""

from __future__ import annotations

import io

from agent.model import SystemClock
from agent.watch.narrate import Narrator, Troubles


def test_a_trouble_is_said_when_it_begins_changes_and_ends() -> None:
    out = io.StringIO()
    troubles = Troubles(Narrator(out, SystemClock()))
    for error in (None, "disk full", "disk full", "read-only", None, None):
        troubles.saw("the journal", error, "kept in memory")
    assert [line.split("agent: ")[1] for line in out.getvalue().splitlines()] == [
        "the journal fails: disk full (kept in memory)",
        "the journal fails: read-only (kept in memory)",
        "the journal works again",
    ]
