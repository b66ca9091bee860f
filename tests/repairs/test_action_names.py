"""The names in plans, in the table of actions, in the fault catalogue and in the default modes are one set."""

from __future__ import annotations

import pytest

from agent.config import ACTIONS, default_modes
from agent.diagnose import load_catalogue
from agent.remediate import allocator, assembler, cache, graphs, neighbour, restarting, smaller_batch
from agent.remediate.planning import STEPPING

PLANNED = {
    allocator.ACTION,
    assembler.ACTION,
    cache.FIT_LENGTH,
    cache.RAISE,
    graphs.ACTION,
    neighbour.FIT,
    neighbour.ORPHANS,
    neighbour.WAIT,
    restarting.ACTION,
    smaller_batch.ACTION,
}

# Advice: what changes the server's purpose, its host or its command, or what no message has the numbers for.
OF_A_PERSON = {
    "fewer-graphs",
    "fix-command",
    "fix-model",
    "free-port",
    "lower-utilization",
    "raise-host-memory",
    "raise-utilization",
}


def test_every_planned_action_stands_in_the_table_and_every_row_is_planned():
    assert {policy.name for policy in ACTIONS} == PLANNED == set(default_modes())
    assert STEPPING <= PLANNED


@pytest.mark.parametrize("policy", ACTIONS, ids=lambda policy: policy.name)
def test_a_row_says_everything_that_a_person_needs_to_choose_a_mode(policy):
    for column in ("changes", "precondition", "bounds", "cost", "undo", "proof"):
        assert len(getattr(policy, column)) > 3, column


def test_a_remedy_of_the_catalogue_is_an_action_or_plainly_a_persons():
    names = {remedy.action for fault in load_catalogue().faults for remedy in fault.remedies}
    assert names - PLANNED == OF_A_PERSON
