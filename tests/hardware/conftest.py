"""The driver stand-ins, built once a run, and a reader in front of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import agent.launch.driverlink as driverlink
from tests.hardware.fake_driver import FakeDriver, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a driver of today."""
    return build(tmp_path_factory.mktemp("driver") / "new")


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a driver before 510."""
    return build(tmp_path_factory.mktemp("driver") / "old", "-DOLD")


@pytest.fixture
def driver(tmp_path: Path, library: Path) -> FakeDriver:
    """Two cards."""
    made = FakeDriver(tmp_path / "state", library)
    made.set({}, {})
    return made


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A busy machine is no slow driver."""
    monkeypatch.setattr(driverlink, "HANG_SECONDS", 60.0)
    yield
