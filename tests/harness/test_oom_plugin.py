"""The out-of-memory text of the test plugin: its numbers agree, so that the arithmetic built on them can be
judged.
"""

from __future__ import annotations

import re
import sys

import pytest

from tests.support import vllm_cpu


@pytest.fixture
def message(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(vllm_cpu.PLUGIN))
    monkeypatch.delitem(sys.modules, "oom_above", raising=False)
    import oom_above

    text: str = oom_above.MESSAGE
    return text


def number(message: str, pattern: str) -> float:
    """A size in GiB."""
    match = re.search(pattern.replace("SIZE", r"([0-9.]+) (GiB|MiB)"), message)
    assert match is not None, pattern
    return float(match[1]) / (1024 if match[2] == "MiB" else 1)


def test_the_parts_of_the_card_add_up_to_its_size(message: str) -> None:
    total = number(message, "total capacity of SIZE")
    free = number(message, "of which SIZE is free")
    used = number(message, "this process has SIZE memory in use")
    assert used + free == pytest.approx(total, abs=0.01)
    allocated = number(message, "memory SIZE is allocated by PyTorch")
    reserve = number(message, "and SIZE is reserved by PyTorch but unallocated")
    assert 0 < used - allocated - reserve < 2, "what is left is the CUDA context"


def test_neither_fragmentation_nor_a_neighbour_explains_it(message: str) -> None:
    requested = number(message, "Tried to allocate SIZE")
    reserve = number(message, "and SIZE is reserved by PyTorch but unallocated")
    assert reserve < requested
    assert number(message, "of which SIZE is free") < requested
    assert not re.search(r"Process \d+ has", message)


def test_vllm_finds_the_plugin_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import distributions

    found = [
        entry
        for distribution in distributions(path=[str(vllm_cpu.PLUGIN)])
        for entry in distribution.entry_points
        if entry.group == "vllm.general_plugins"
    ]
    assert [(entry.name, entry.value) for entry in found] == [("oom_above", "oom_above:register")]
