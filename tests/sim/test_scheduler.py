"""The scheduler alone: limits that no step may pass, and that every request ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.sim.scheduler import Scheduler, Sequence

BLOCK = 4


def make(seqs: int, budget: int, blocks: int, *, caching: bool = True) -> Scheduler:
    return Scheduler(
        max_num_seqs=seqs,
        max_tokens=budget,
        blocks=blocks,
        block_size=BLOCK,
        max_len=64,
        prefix_caching=caching,
    )


def step(scheduler: Scheduler) -> tuple[dict[int, int], list[tuple[int, str, int, int]]]:
    planned = scheduler.plan()
    scheduler.finish(planned)
    return planned.scheduled, planned.finished


@settings(max_examples=60, deadline=None)
@given(
    seqs=st.integers(1, 5),
    budget=st.integers(1, 20),
    blocks=st.integers(16, 30),
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=8),
)
def test_limits_hold_in_every_step_and_every_request_ends(
    seqs: int, budget: int, blocks: int, requests: list[tuple[int, int]]
) -> None:
    scheduler = make(seqs, max(seqs, budget), blocks)
    for number, (prompt, tokens) in enumerate(requests):
        scheduler.add(Sequence(number, prompt, tokens, list(range(prompt // BLOCK))))
    ended: set[int] = set()
    for _ in range(5000):
        if not scheduler.has_work:
            break
        scheduled, finished = step(scheduler)
        assert len(scheduler.running) <= seqs
        assert sum(scheduled.values()) <= max(seqs, budget)
        assert 0 <= scheduler.used <= blocks
        assert all(count > 0 for count in scheduled.values())
        ended.update(number for number, *_ in finished)
    assert ended == set(range(len(requests)))
    assert scheduler.used == 0


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    scheduler = make(4, 8, 32)
    scheduler.add(Sequence(1, 20, 2))
    assert [step(scheduler)[0] for _ in range(4)] == [{1: 8}, {1: 8}, {1: 4}, {1: 1}]


def test_waiting_requests_run_in_the_order_of_arrival() -> None:
    scheduler = make(1, 8, 32)
    for number in (1, 2, 3):
        scheduler.add(Sequence(number, 2, 1))
    assert [list(step(scheduler)[0]) for _ in range(3)] == [[1], [2], [3]]


def test_a_preempted_request_starts_over_and_still_ends() -> None:
    scheduler = make(2, 64, 8, caching=False)
    scheduler.add(Sequence(1, 12, 12))
    scheduler.add(Sequence(2, 12, 12))
    finished: list[tuple[int, str, int, int]] = []
    for _ in range(60):
        finished += step(scheduler)[1]
    assert [number for number, *_ in finished] == [1, 2]
    assert finished[1][2] >= 1


def test_the_same_prompt_hits_the_prefix_cache_but_for_its_last_token() -> None:
    scheduler = make(2, 64, 32)
    for number in (1, 2):
        scheduler.add(Sequence(number, 12, 1, [7, 8, 9]))
        scheduled, [(_, _, _, cached)] = step(scheduler)
        assert cached == (0 if number == 1 else 8)
        assert scheduled == {number: 12 - cached}


def test_an_aborted_request_gives_its_blocks_back() -> None:
    scheduler = make(2, 64, 32)
    scheduler.add(Sequence(1, 12, 9))
    step(scheduler)
    scheduler.abort({1})
    assert scheduler.used == 0
    assert not scheduler.has_work
