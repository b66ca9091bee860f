"""Run Prometheus' own PromQL test files against this evaluator: ``python tests/promql/conformance.py FILE...``.

In: files in promqltest's format. Out: a line for every case that failed (file, line, expected, got) or that is
unsupported (with the reason), a line for every file, and last ``N passed, N failed, N unsupported``; exit status 1
where something failed. Unsupported is a closed list: native histograms, loaded or expected, ``info()``, and what
Prometheus keeps behind a feature flag. Whatever else is refused has failed.

As Prometheus' runner does, each instant query is asked once more as the middle step of a range query, and names are
dropped at a query's end, as its test engine has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.errors import AgentError
from agent.series.data import Labels
from agent.series.promql.value import Notes, Range, Value
from tests.promql import constructs
from tests.promql.cases import Clear, Command, Eval, Load, Unreadable, placeless, read
from tests.promql.compare import matrix_difference, scalar_difference, string_difference, vector_difference
from tests.promql.evaluator import instant, ranged, samples
from tests.promql.notation import HISTOGRAM
from tests.promql.store import Store

MINUTE_MS = 60_000
# What depends on the query's own bounds differs between an instant query and the middle of a range.
CONTEXT = ("start()", "end()", "range()", "step()")


class Verdict(Enum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Outcome:
    """How a case ended, where it stands, and why."""

    verdict: Verdict
    file: str
    line: int
    query: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict.value.upper()} {self.file}:{self.line} {self.query}\n    {self.reason}"


def run(path: Path) -> Iterator[Outcome]:
    """The outcome of each case of a file, and of each command that cannot be read."""
    store = Store()
    for command in read(path.read_text(encoding="utf-8", errors="surrogateescape")):
        outcome = _outcome(command, store, path.name)
        if outcome:
            yield outcome


def _outcome(command: Command, store: Store, file: str) -> Outcome | None:
    if isinstance(command, Clear):
        store.clear()
    elif isinstance(command, Load):
        store.load(command)
    elif isinstance(command, Unreadable):
        reason = f"this runner cannot read it: {command.reason}"
        return Outcome(Verdict.FAILED, file, command.line, command.text, reason)
    else:
        verdict, reason = judge(command, store)
        return Outcome(verdict, file, command.line, command.query, reason)
    return None


def judge(case: Eval, store: Store) -> tuple[Verdict, str]:
    """Run one case."""
    reason = constructs.reason(case.query)
    if reason is None and any(HISTOGRAM in points for _, points in case.series):
        reason = "expects native histograms"
    if reason:
        return Verdict.UNSUPPORTED, reason
    store.forget()
    try:
        difference = _difference(case, store)
    except Exception as error:  # whatever it is, it fails this case alone
        return Verdict.FAILED, f"the evaluator broke: {type(error).__name__}: {error}"
    if store.foreign:
        return Verdict.UNSUPPORTED, next(iter(store.foreign))
    return (Verdict.FAILED, difference) if difference else (Verdict.PASSED, "")


def _difference(case: Eval, store: Store) -> str | None:
    notes = Notes()
    try:
        if case.end_ms is not None:
            times = (case.start_ms, case.end_ms, case.step_ms)
            matrix = ranged(case.query, store, times, notes)
            return _unexpected_success(case, notes) or matrix_difference(case, times, matrix)
        value = instant(case.query, store, case.start_ms, notes)
    except AgentError as error:
        return _failure_difference(case, error)
    difference = _unexpected_success(case, notes) or _value_difference(case, value)
    return difference or _middle_difference(case, store, value)


def _failure_difference(case: Eval, error: AgentError) -> str | None:
    expectations = case.expects("fail")
    said = str(error)
    if not expectations:
        return f"expected a result, got the error: {said}"
    if all(expectation.matches(said) for expectation in expectations):
        return None
    return f"expected the error {expectations}, got: {said}"


def _unexpected_success(case: Eval, notes: Notes) -> str | None:
    if case.expects("fail"):
        return "expected an error, got a result"
    for kind, said in (("warn", list(notes.warnings)), ("info", list(notes.infos))):
        if case.expects(f"no_{kind}") and said:
            return f"expected no {kind}, got {said}"
        expectations = case.expects(kind)
        for expectation in expectations:
            if not any(expectation.matches(text) for text in said):
                return f"expected the {kind} {expectation}, got {said or 'none'}"
        # Prometheus keeps one annotation of a text, wherever in the query it was found.
        expected = {placeless(text) for text in said if any(each.matches(text) for each in expectations)}
        for text in said:
            if expectations and placeless(text) not in expected:
                return f"expected only {kind}s like {expectations}, got {text!r}"
    return None


def _value_difference(case: Eval, value: Value) -> str | None:
    if isinstance(value, str):
        return string_difference(case, value)
    if isinstance(value, Range):
        if case.window is None:
            return "expected an instant vector, got a range vector"
        matrix = {span.labels: samples(span) for span in value.spans}
        return matrix_difference(case, case.window, matrix)
    if isinstance(value, list):
        return vector_difference(case, [(element.labels, element.value) for element in value])
    return scalar_difference(case, value)


def _middle_difference(case: Eval, store: Store, value: Value) -> str | None:
    """The same query as the middle step of a range: the same elements in any order."""
    if isinstance(value, (str, Range)) or any(call in case.query for call in CONTEXT):
        return None
    times = (case.start_ms - MINUTE_MS, case.start_ms + MINUTE_MS, MINUTE_MS)
    try:
        matrix = ranged(case.query, store, times, Notes())
    except AgentError as error:
        return f"as a range query: got the error: {error}"
    if case.expects("ordered"):
        return None
    difference = _matrix_order(matrix) or _step_difference(case, matrix, value)
    return f"as a range query: {difference}" if difference else None


def _matrix_order(matrix: Mapping[Labels, object]) -> str | None:
    return None if list(matrix) == sorted(matrix) else "expected series sorted by labels, got them unsorted"


def _step_difference(case: Eval, matrix: Mapping[Labels, Mapping[int, float]], value: Value) -> str | None:
    elements = [(labels, values[case.start_ms]) for labels, values in matrix.items() if case.start_ms in values]
    if isinstance(value, list):
        return vector_difference(case, elements)
    if len(elements) != 1:
        return f"expected a scalar at each step, got {len(elements)} series"
    return scalar_difference(case, elements[0][1])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where a case failed."""
    parser = argparse.ArgumentParser(description="Run Prometheus' PromQL test files.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out the unsupported cases")
    parser.add_argument("-v", "--verbose", action="store_true", help="name the passed cases as well")
    options = parser.parse_args(arguments)
    shown = {Verdict.FAILED} if options.quiet else {Verdict.FAILED, Verdict.UNSUPPORTED}
    total: list[Outcome] = []
    for path in options.files:
        try:
            outcomes = list(run(path))
        except OSError as error:
            outcomes = [Outcome(Verdict.FAILED, path.name, 0, str(path), f"cannot be read: {error.strerror}")]
        for outcome in outcomes:
            if outcome.verdict in shown or options.verbose:
                _say(outcome)
        _say(f"{path.name}: {_counts(outcomes)}")
        total += outcomes
    _say(_counts(total))
    return 1 if any(outcome.verdict is Verdict.FAILED for outcome in total) else 0


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")


def _counts(outcomes: Sequence[Outcome]) -> str:
    counts = {verdict: sum(outcome.verdict is verdict for outcome in outcomes) for verdict in Verdict}
    return ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
