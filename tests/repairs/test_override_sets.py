"""Override sets: joined, read back from the launcher, and shown as a person would type them."""

from __future__ import annotations

import pytest

from agent.model import Change
from agent.remediate import from_wire
from agent.remediate.overrides import as_arguments, flag_value, merged


def test_a_change_joins_what_is_in_force_and_replaces_the_same_flag():
    base = Change(flags=(("--max-num-seqs", "64"), ("--max-model-len", "512")), env={"A": "1"})
    new = merged(base, {"--max-num-seqs": "32", "--kv-cache-memory-bytes": "9"}, {"B": None})
    assert new.flags == (("--max-num-seqs", "32"), ("--max-model-len", "512"), ("--kv-cache-memory-bytes", "9"))
    assert new.env == {"A": "1", "B": None}


def test_what_the_launcher_says_is_read_back_with_its_switches():
    wire = {"v": 1, "flags": [["--enforce-eager", None], ["--max-num-seqs", "8"]], "env": {"X": None}, "key": {}}
    assert from_wire(wire) == Change(flags=(("--enforce-eager", ""), ("--max-num-seqs", "8")), env={"X": None})
    assert from_wire(None) == Change()


@pytest.mark.parametrize("damaged", [{"flags": 3}, {"flags": [["a"]]}, {"env": {"A": 1}}, {"flags": [["a", 5]]}])
def test_a_damaged_set_is_no_set(damaged):
    assert from_wire(damaged) is None


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (("vllm", "serve", "--max-num-seqs", "4", "--max-num-seqs=8"), "8"),
        (("vllm", "--max_num_seqs", "4"), "4"),
        (("vllm", "--max-num-seqs", "--other"), ""),
        (("vllm",), None),
    ],
)
def test_the_last_value_on_a_command_line_counts(argv, value):
    assert flag_value(argv, "--max-num-seqs") == value


def test_a_set_is_shown_as_arguments():
    change = Change(flags=(("--enforce-eager", ""), ("--max-num-seqs", "8")), env={"A": "1", "B": None})
    assert as_arguments(change) == "A=1 (unset B) --enforce-eager --max-num-seqs 8"
