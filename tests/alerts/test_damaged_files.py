"""Files that were cut, mixed up or typed wrongly: always a list of problems, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.alerts import Template, TemplateError, check_rules
from tests.alerts.given import METRICS, written
from tests.alerts.test_rule_files import GOOD

WORDS = [
    "{{",
    "}}",
    "-",
    "$labels",
    ".x",
    "$value",
    "printf",
    '"%.2f"',
    "|",
    "(",
    ")",
    " ",
    "humanize",
    "\n",
    "`",
    '"',
    "%",
]
SCRAPS = [*"{}[]:,-#&*!|>'\"%@`\n\t ", "  ", "- ", "expr:", "null", "&a ", "*a", "? ", "---\n", "\0", "é", "[5m]"]


@settings(max_examples=150, deadline=None)
@given(cut=st.integers(0, len(GOOD)), until=st.integers(0, 40), scrap=st.lists(st.sampled_from(SCRAPS), max_size=4))
def test_a_damaged_rule_file(tmp_path_factory: pytest.TempPathFactory, cut: int, until: int, scrap: list[str]) -> None:
    text = GOOD[:cut] + "".join(scrap) + GOOD[cut + until :]
    folder: Path = tmp_path_factory.mktemp("damaged")
    for problem in check_rules([written(folder, text)], metrics=METRICS):
        assert problem.where.startswith(str(folder)) and problem.message and problem.remedy


@settings(max_examples=400, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=12))
def test_a_damaged_template(words: list[str]) -> None:
    try:
        template = Template("".join(words))
    except TemplateError as error:
        assert str(error)
    else:
        template.expand({"x": "1"}, 2.5)


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe", b"groups: \x00", b"groups: [" * 200, b"a: &a [*a]\ngroups: *a", b"x" * (1 << 21)]
)
def test_what_is_no_text_or_no_end(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(raw)
    problems = check_rules([path])
    assert problems and all(problem.fatal and problem.remedy for problem in problems)


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    problems = check_rules([tmp_path / "nowhere", tmp_path])
    assert {problem.where for problem in problems} == {str(tmp_path / "nowhere"), str(tmp_path)}
