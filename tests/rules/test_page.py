"""docs/rules.md says what the rules say."""

from __future__ import annotations

import re

import pytest

from tests.documentation.pages import read, rows
from tests.rules.tables import alert_rows, threshold_rows

REMEDY = "run `python -m tests.rules.tables` and put its rows into docs/rules.md"


@pytest.mark.parametrize("concern", alert_rows())
def test_the_alerts_of_the_page_are_those_of_the_rules(concern: str) -> None:
    section = re.split(r"^### ", read("rules.md"), flags=re.MULTILINE)
    [text] = [one for one in section if one.startswith(f"{concern}\n")]
    assert rows(text, "alert") == alert_rows()[concern], REMEDY


def test_the_thresholds_of_the_page_are_those_of_the_profiles() -> None:
    assert [row[:5] for row in rows(read("rules.md"), "threshold")] == threshold_rows(), REMEDY
