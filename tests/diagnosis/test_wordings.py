"""The classes in the words of other versions, and the quotes, warnings and stops that are no fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.diagnosis.logs import first, loud

CASES: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "wordings.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case['class']}" for number, case in enumerate(CASES)])
def test_wording(case: dict[str, str]) -> None:
    if case["class"] == "none":
        assert loud(case["log"]) == []
    else:
        assert first(case["log"]).fault == case["class"]
        assert loud(case["log"])[0] == case["class"]
