"""The format of Prometheus' own PromQL test files, read into commands (promql/promqltest/README.md).

In: the text of a file. Out: its commands in order, each with its line. A command that cannot be read becomes
:class:`Unreadable`, with line and reason, and the rest of the file is still read: newer files must not stop the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.series.data import Labels
from tests.promql.notation import NotationError, Point, duration_ms, number, series, unquoted

_LOAD = re.compile(r"load(?:_(with_nhcb))?\s+(\S+)$")
_INSTANT = re.compile(r"eval(?:_(fail|warn|ordered|info))?\s+instant\s+at\s+(\S+)\s+(.+)$")
_RANGE = re.compile(r"eval(?:_(fail|warn|info))?\s+range\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)\s+(.+)$")
_EXPECT = re.compile(r"expect\s+(ordered|fail|warn|no_warn|info|no_info)(?:\s+(regex|msg):(.+))?$")
_WINDOW = re.compile(r"expect range vector\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)$")
_START_TIMES = re.compile(r"(\S*)@st\s")


@dataclass(frozen=True)
class Clear:
    """Forget all samples."""

    line: int


@dataclass(frozen=True)
class Load:
    """Add samples, a step apart, from time zero on. ``started``: the series whose start timestamps are given."""

    line: int
    step_ms: int
    series: tuple[tuple[Labels, tuple[Point, ...]], ...]
    converts: bool = False
    started: frozenset[Labels] = frozenset()


@dataclass(frozen=True)
class Expectation:
    """What a failure, a warning or an info must say; ``text`` None takes any."""

    text: str | None = None
    pattern: str | None = None

    def matches(self, said: str) -> bool:
        """Whether this was said. Older files leave out the place in the query, which then is not compared."""
        if self.pattern is not None:
            return re.search(self.pattern, said) is not None
        return self.text is None or self.text in (said, placeless(said))


def placeless(said: str) -> str:
    """An annotation without its place in the query."""
    return re.sub(r" \(\d+:\d+\)$", "", said)


@dataclass
class Eval:
    """One case: a query with what it must give. ``end_ms`` None: an instant query."""

    line: int
    query: str
    start_ms: int
    end_ms: int | None = None
    step_ms: int = 0
    window: tuple[int, int, int] | None = None
    expectations: dict[str, list[Expectation]] = field(default_factory=dict)
    series: list[tuple[Labels, list[Point]]] = field(default_factory=list)
    scalar: float | None = None
    string: str | None = None

    def expects(self, kind: str) -> list[Expectation]:
        """The expectations of one kind: fail, warn, info, no_warn, no_info, ordered."""
        return self.expectations.get(kind, [])


@dataclass(frozen=True)
class Unreadable:
    """A command that this reader does not know."""

    line: int
    text: str
    reason: str


Command = Clear | Load | Eval | Unreadable


def read(text: str) -> Iterator[Command]:
    """All commands of a file. A blank line or a comment ends a command."""
    lines = [("" if line.strip().startswith("#") else line.strip()) for line in text.split("\n")]
    index = 0
    while index < len(lines):
        if not lines[index]:
            index += 1
            continue
        end = index + 1
        while end < len(lines) and lines[end]:
            end += 1
        yield from _block(lines[index:end], index + 1)
        index = end


def _block(lines: list[str], first: int) -> Iterator[Command]:
    """The commands of lines that follow one another without a gap."""
    start = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and not _begins(lines[end]):
            end += 1
        try:
            yield _command(lines[start:end], first + start)
        except (NotationError, re.error) as error:
            yield Unreadable(first + start, lines[start], str(error))
        start = end


def _begins(line: str) -> bool:
    word = line.split(None, 1)[0].lower()
    return word == "clear" or re.fullmatch(r"load(_with_\w+)?|eval(_[a-z]+)?", word) is not None


def _command(lines: list[str], number_of_first: int) -> Command:
    word = lines[0].split(None, 1)[0].lower()
    if word == "clear":
        if len(lines) > 1:
            raise NotationError(f"not a command: {lines[1]!r} (line {number_of_first + 1})")
        return Clear(number_of_first)
    if word.startswith("load"):
        return _load(lines, number_of_first)
    if word.startswith("eval"):
        return _eval(lines, number_of_first)
    raise NotationError(f"not a command: {lines[0]!r}")


def _load(lines: list[str], first: int) -> Load:
    match = _LOAD.match(lines[0])
    if match is None:
        raise NotationError(f"not a load command: {lines[0]!r}")
    found: dict[Labels, tuple[Point, ...]] = {}
    started: set[Labels] = set()
    all_started = False
    for offset, line in enumerate(lines[1:], 1):
        start_times = _START_TIMES.match(line)
        with _line(first + offset):
            if start_times:
                all_started = all_started or not start_times[1]
                started |= {series(start_times[1])[0]} if start_times[1] else set()
                continue
            labels, values = series(line)
        found[labels] = tuple(values)
        started |= {labels} if all_started else set()
    return Load(first, duration_ms(match[2]), tuple(found.items()), match[1] is not None, frozenset(started))


def _eval(lines: list[str], first: int) -> Eval:
    case = _head(lines[0], first)
    for offset, line in enumerate(lines[1:], 1):
        with _line(first + offset):
            _read_expected(case, line)
    return case


def _head(line: str, first: int) -> Eval:
    instant, ranged = _INSTANT.match(line), _RANGE.match(line)
    if instant:
        case = Eval(first, instant[3], duration_ms(instant[2]))
        modifier = instant[1]
    elif ranged:
        start, end, step = (duration_ms(text) for text in ranged.group(2, 3, 4))
        case = Eval(first, ranged[5], start, end, step)
        modifier = ranged[1]
    else:
        raise NotationError(f"not an eval command: {line!r}")
    if modifier:
        case.expectations[modifier] = [Expectation()]
    return case


def _read_expected(case: Eval, line: str) -> None:
    window = _WINDOW.match(line)
    if window:
        start, end, step = (duration_ms(text) for text in window.groups())
        case.window = (start, end, step)
    elif line.startswith("expect string"):
        case.string = unquoted(line.removeprefix("expect string").strip())
    elif line.startswith("expected_fail_message"):
        case.expectations["fail"] = [Expectation(text=line.removeprefix("expected_fail_message").strip())]
    elif line.startswith("expected_fail_regexp"):
        case.expectations["fail"] = [Expectation(pattern=line.removeprefix("expected_fail_regexp").strip())]
    elif line.split()[0] == "expect":
        _read_expectation(case, line)
    else:
        scalar = number(line)
        if scalar is not None:
            case.scalar = scalar
        else:
            case.series.append(series(line))


def _read_expectation(case: Eval, line: str) -> None:
    match = _EXPECT.match(line)
    if match is None:
        raise NotationError(f"not an expect line: {line!r}")
    kind, how, said = match.groups()
    text = said.strip() if said else None
    if how == "regex":
        re.compile(text or "")
        expectation = Expectation(pattern=text)
    else:
        expectation = Expectation(text=text)
    case.expectations.setdefault(kind, []).append(expectation)


class _line:
    """Add the line to what cannot be read."""

    def __init__(self, line: int) -> None:
        self._line = line

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotationError):
            raise NotationError(f"{error} (line {self._line})") from None
