"""Several logs of one server as one start.

Each log was read by itself; here their anchors are put in one order: by time where every log states times,
else in the order the logs were given. What one log knows (the server was ready) holds for the lines of the
others after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.diagnose.start import Anchor, Start


def merge(starts: Sequence[Start]) -> Start:
    """One start out of the same start in several logs. The inputs are used up."""
    if len(starts) == 1:
        return starts[0]
    timed = all(anchor.time for start in starts for anchor in start.anchors)
    whole = Start()
    for start in starts:
        _take_state(whole, start)
    marks: list[tuple[str, int, int]] = []
    for index, start in enumerate(starts):
        for anchor in start.anchors:
            first, last = (
                _mark(anchor.time, index, anchor.sequence, timed),
                _mark(anchor.last_time, index, anchor.last_sequence, timed),
            )
            marks += [first, last]
        if start.throughput:
            marks.append(_mark(start.throughput[1], index, start.throughput[0], timed))
    order = {mark: number for number, mark in enumerate(sorted(set(marks)))}
    for index, start in enumerate(starts):
        for anchor in start.anchors:
            anchor.last_sequence = order[_mark(anchor.last_time, index, anchor.last_sequence, timed)]
            anchor.sequence = order[_mark(anchor.time, index, anchor.sequence, timed)]
            _after_ready(whole, anchor, timed)
            whole.anchors.append(anchor)
        if start.throughput:
            number = order[_mark(start.throughput[1], index, start.throughput[0], timed)]
            whole.throughput = max(whole.throughput or (number, None), (number, None))
    whole.anchors.sort(key=lambda anchor: anchor.sequence)
    return whole


def _mark(time: str | None, index: int, sequence: int, timed: bool) -> tuple[str, int, int]:
    return (time or "") if timed else "", index, sequence


def _take_state(whole: Start, start: Start) -> None:
    whole.began = whole.began or start.began
    if whole.ready is None and start.ready is not None:
        whole.ready, whole.ready_time = start.ready, start.ready_time
    whole.shutdown = whole.shutdown or start.shutdown
    whole.ended = whole.ended or start.ended
    whole.milestone = start.milestone or whole.milestone
    whole.exceptions += start.exceptions
    whole.watched |= start.watched
    whole.pids |= start.pids
    whole.failed = whole.failed or start.failed
    whole.last_error = start.last_error or whole.last_error
    for name, value in start.settings.items():
        whole.settings.setdefault(name, value)


def _after_ready(whole: Start, anchor: Anchor, timed: bool) -> None:
    if timed and whole.ready_time and anchor.time and anchor.time > whole.ready_time and not anchor.ready:
        anchor.ready = True
        anchor.phase = "serving"
