"""A factory of launchers around the stand-in server of the launcher's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.harness import Factory


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Factory]:
    factory = Factory(tmp_path)
    yield factory
    factory.clean()
