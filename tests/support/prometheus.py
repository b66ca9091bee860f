"""Where the real Prometheus, promtool, Alertmanager and vmalert lie, or why a test that needs them is skipped.

In: the environment. Out: the path of a program, or pytest's skip with the remedy. It never installs:
``tests/support/install_prometheus.sh`` does (``make prometheus``, ``make prometheus-3``). With
VLLM_AGENT_REQUIRE_PROMETHEUS=1 a missing program of Debian 12 fails the test, with =3 one of Prometheus 3 as well.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.vllm_cpu import cache_folder

VERSIONS = ("2", "3")
FOLDERS = {"2": Path("/usr/bin"), "3": cache_folder() / "prometheus-3" / "usr" / "bin"}
REMEDIES = {"2": "make prometheus", "3": "make prometheus-3"}


def program(name: str, version: str = "2") -> str:
    """The path of ``prometheus``, ``promtool``, ``prometheus-alertmanager``, ``amtool`` or ``vmalert`` (3 only)."""
    path = FOLDERS[version] / name
    if path.is_file():
        return str(path)
    said = f"{path} is missing; remedy: {REMEDIES[version]}"
    required = os.environ.get("VLLM_AGENT_REQUIRE_PROMETHEUS", "")
    if required == "3" or (required == "1" and version == "2"):
        pytest.fail(said)
    pytest.skip(said)
