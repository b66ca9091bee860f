"""The exit record: one line of ``exits.jsonl``, and the body of the exit event.

In: a life that ended. Out: the published object (schema ``exit-record``). Never judges; ``reason`` is the
policy's own phrase.
"""

from __future__ import annotations

from agent.launch.clock import rfc3339
from agent.launch.life import Life
from agent.launch.policy import Ending, describe


def exit_record(
    seq: int, life: Life, ending: Ending, *, command_hash: str, oom_kills: int | None, log_offset: int
) -> dict[str, object]:
    """Times are RFC 3339 UTC and monotonic seconds; ``log_offset`` is where the life's output ends.

    ``oom_kills`` is the memory cgroup's counter now; the record holds how much it grew, None if unknown.
    """
    assert life.ended_at is not None
    before = life.oom_kill_before
    return {
        "v": 1,
        "seq": seq,
        "pid": life.pid,
        "command_hash": command_hash,
        "started_at": rfc3339(life.started.wall),
        "ready_at": rfc3339(life.ready.wall) if life.ready else None,
        "exited_at": rfc3339(life.ended_at.wall),
        "started_monotonic": life.started.monotonic,
        "ready_monotonic": life.ready.monotonic if life.ready else None,
        "exited_monotonic": life.ended_at.monotonic,
        "code": ending.code,
        "signal": ending.signal,
        "asked": ending.asked is not None,
        "reason": describe(ending),
        "oom_kill_delta": oom_kills - before if oom_kills is not None and before is not None else None,
        "log_offset": log_offset,
    }
