"""A factory of launchers around the stand-in server of the launcher's own tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.harness import FAKE, Factory


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Factory]:
    factory = Factory(tmp_path)
    yield factory
    factory.clean()


@pytest.fixture
def vllm_like(tmp_path: Path) -> list[str]:
    """A command whose shape takes flags: a script named ``vllm`` with the word ``serve``."""
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n" + FAKE.read_text())
    script.chmod(0o755)
    return [str(script), "serve", "MODEL"]
