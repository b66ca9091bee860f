"""The shipped rules as the tests of this folder read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.prometheus import VERSIONS, program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "rules"
ALERTS = sorted((RULES / "alerts").glob("*.yaml"))
PROFILES = sorted((RULES / "profiles").glob("*.yaml"))
TESTS = sorted((RULES / "tests").glob("*.yaml"))
each_prometheus = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"prometheus-{version}")

_FAILED = re.compile(r"(?:name: (?P<name>.*),\s+)?alertname: (?P<alert>\w+), time: (?P<time>\w+)")


def run(*command: str) -> tuple[int, str]:
    """Exit status and everything printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout + done.stderr


def promtool(version: str, *arguments: str) -> tuple[int, str]:
    return run(program("promtool", version), *arguments)


def failed_cases(text: str) -> set[tuple[str, str, str]]:
    """(test, alert, time) of each case that promtool or the agent says does not hold."""
    return {(found["name"] or "", found["alert"], found["time"]) for found in _FAILED.finditer(text)}
