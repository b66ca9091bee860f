"""Shared by these tests: sessions from text, and the test data."""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path

import yaml

from agent.diagnose import Catalogue, LogSession, load_catalogue
from agent.model import Cause, Context, Finding, Severity

DATA = Path(__file__).parent.parent / "data"
CAPTURES = DATA / "captures" / "logs"
INCIDENTS = DATA / "incidents"
NOTHING_KNOWN = Context()


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    return load_catalogue()


def session(log: str | bytes, source: str = "vllm.log") -> LogSession:
    read = LogSession(catalogue(), source=source)
    read.feed(log.encode() if isinstance(log, str) else log)
    read.finish()
    return read


def causes(log: str | bytes, context: Context = NOTHING_KNOWN) -> tuple[Cause, ...]:
    return session(log).conclude(context)


def first(log: str | bytes, context: Context = NOTHING_KNOWN) -> Finding:
    found = causes(log, context)
    assert found, "no cause was named"
    return found[0].finding


def loud(log: str | bytes, context: Context = NOTHING_KNOWN) -> list[str]:
    return [cause.finding.fault for cause in causes(log, context) if cause.finding.severity is not Severity.INFO]


def capture(name: str) -> bytes:
    path = CAPTURES / name
    return gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()


def expected() -> dict[str, list[str]]:
    table: dict[str, list[str]] = yaml.safe_load((CAPTURES / "expected.yaml").read_text())
    return table


def incidents() -> list[dict[str, object]]:
    return [yaml.safe_load(path.read_text()) for path in sorted(INCIDENTS.glob("case-*.yaml"))]
