"""The text of ``/metrics`` becomes samples.

In: the bytes of one answer and its content type. Out: an :class:`Exposition`, the samples in the answer's order with
the lines that could not be read, each by its number. Classic text 0.0.4 and OpenMetrics are read; the content type says
which, and only timestamps differ. A broken line costs that line alone. An answer that is no exposition at all (HTML,
JSON, something binary) raises :class:`ExpositionError`.

Between two scrapes of one server the series are the same and only the values move, so a :class:`Reader` remembers what
the text before each value meant: one look into a dictionary a line, no regular expression, and a series that nobody
asked for costs not even the reading of its number. The memory is bounded: a server that makes up new labels at every
scrape pays with time and takes no memory. It keeps no history and judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec

from agent.errors import AgentError
from agent.series.data import NAME, Labels
from agent.series.sample_line import number, read_line, timestamp, unescape

T = TypeVar("T")
OPENMETRICS = "application/openmetrics-text"
MAX_LINES = 100_000
"""Lines of one answer that are read; vLLM has about 600 an engine."""
MAX_KNOWN = 50_000
"""Texts that a reader remembers, about 12 MB at 250 bytes each."""
MAX_NEW = 2_500
"""Series that are read for the first time in one answer, about 18 ms; the others wait for the next answer."""
MAX_NAMED = 20
"""Broken lines that are named; the others are counted."""
_JSON = re.compile(r'\[|\{\s*(?:\}\s*$|"(?:[^"\\]|\\.)*"\s*:)')
_CREATED = "_created"
_WITH_CREATED = ("counter", "histogram", "summary")


class ExpositionError(AgentError):
    """The answer is no Prometheus text exposition."""


class BadLine(NamedTuple):
    """A line that could not be read; lines count from 1."""

    line: int
    reason: str


class Metadata(msgspec.Struct, frozen=True):
    """What TYPE, HELP and UNIT say of a family."""

    type: str = "untyped"
    help: str = ""
    unit: str = ""


class Exposition(msgspec.Struct, Generic[T], kw_only=True):
    """``samples`` are (series, value, explicit time in ms or None) in the order of the answer, duplicates included.

    ``lines`` counts all sample lines that were readable, also those of series that were not asked for; ``bad`` names
    the first broken lines and ``bad_count`` counts all. ``truncated``: there were more lines than are read; of
    ``waiting`` new series the reader will read some from each of the next answers.
    """

    samples: list[tuple[T, float, int | None]]
    lines: int
    bad: list[BadLine]
    bad_count: int
    truncated: bool
    waiting: int = 0

    def spoilt(self, line: int, reason: str) -> None:
        """Count a broken line."""
        self.bad_count += 1
        if len(self.bad) < MAX_NAMED:
            self.bad.append(BadLine(line, reason))

    def trouble(self) -> str | None:
        """What was wrong with the answer, in one sentence; None: nothing."""
        if self.truncated:
            return f"/metrics is too long: only its first {self.lines + self.bad_count} samples were read"
        if self.waiting:
            return f"{self.waiting} new series in one answer of /metrics are not read yet: too many at once"
        if not self.bad_count:
            return None
        first = self.bad[0]
        return f"{self.bad_count} unreadable lines of /metrics, the first is line {first.line}: {first.reason}"


class Parsed(Exposition[Labels], kw_only=True):
    """A whole answer with the metadata of its families, by the name that TYPE and HELP use."""

    families: Mapping[str, Metadata]


class Reader(Generic[T]):
    """Reads the answers of one target, one after the other.

    ``resolve(labels)`` is called once for each series and gives what stands for it in the samples, or None where it
    is not asked for.
    """

    def __init__(
        self,
        resolve: Callable[[Labels], T | None],
        *,
        max_lines: int = MAX_LINES,
        max_known: int = MAX_KNOWN,
        max_new: int = MAX_NEW,
    ) -> None:
        self._resolve = resolve
        self._max_lines = max_lines
        self._max_known = max_known
        self._max_new = max_new
        self._new = 0
        self._known: dict[str, T | None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def forget(self) -> None:
        """Ask for every series anew: what is asked for has changed."""
        self._known.clear()

    def read(self, body: bytes, content_type: str = "") -> Exposition[T]:
        """Raises :class:`ExpositionError` where there is not one sample in a body that is not empty."""
        if len(self._known) >= self._max_known:
            self._known.clear()
        self._new = 0
        openmetrics = is_openmetrics(content_type)
        found: Exposition[T] = Exposition(samples=[], lines=0, bad=[], bad_count=0, truncated=False)
        lines, cut_off = _lines(_text(body), openmetrics)
        if len(lines) > self._max_lines:
            del lines[self._max_lines :]
            found.truncated = True
        self._walk(lines, openmetrics, found)
        if found.bad_count and not found.lines:
            binary = any(byte < 32 and byte not in b"\t\r\n" for byte in body[:1024])
            raise _refusal("it is binary" if binary else f"line {found.bad[0].line}: {found.bad[0].reason}")
        if cut_off and not found.truncated:
            found.spoilt(len(lines) + 1, "the answer ends without # EOF: it was cut off")
        return found

    def _walk(self, lines: list[str], openmetrics: bool, found: Exposition[T]) -> None:
        known, samples, count = self._known, found.samples, 0
        for place, line in enumerate(lines, 1):
            if line[:1] == "#":
                continue
            key, _, value = line.rpartition(" ")
            try:
                series = known[key]
                if series is not None:
                    samples.append((series, number(value), None))
                count += 1
            except KeyError:
                if line and not line.isspace():
                    count += self._unknown(place, line, openmetrics, found)
            except ValueError as error:
                found.spoilt(place, str(error))
        found.lines = count

    def _unknown(self, place: int, line: str, openmetrics: bool, found: Exposition[T]) -> bool:
        """A new series, or a known one with a timestamp or an exemplar; whether it was readable."""
        try:
            known = self._with_more(line, openmetrics)
            if known is None and self._new >= self._max_new:
                found.waiting += 1
                return False
            series, value, time_ms = known or self._first_sight(line, openmetrics)
        except ValueError as error:
            found.spoilt(place, str(error))
            return False
        if series is not None:
            found.samples.append((series, value, time_ms))
        return True

    def _with_more(self, line: str, openmetrics: bool) -> tuple[T | None, float, int | None] | None:
        """What is known is a whole name with its labels, so only a value and a timestamp can follow it."""
        head, exemplar, _ = line.partition(" # {")
        key, _, last = head.rpartition(" ")
        try:
            if exemplar and key in self._known:
                return self._known[key], number(last), None
            key, _, value = key.rpartition(" ")
            if key in self._known:
                return self._known[key], number(value), timestamp(last.rstrip(), openmetrics=openmetrics)
        except ValueError:
            pass  # the long way says what is wrong, or that all is well: `a {x="y"} 1` after `a 1`
        return None

    def _first_sight(self, line: str, openmetrics: bool) -> tuple[T | None, float, int | None]:
        self._new += 1
        read = read_line(line, openmetrics=openmetrics)
        series = self._resolve(read.labels)
        if len(self._known) < self._max_known:
            self._known[read.key] = series
        return series, read.value, read.time_ms


def parse(body: bytes, content_type: str = "", *, created: bool = True) -> Parsed:
    """Read one answer whole, with its metadata; raises :class:`ExpositionError`.

    ``created=False`` leaves out the ``_created`` series that client libraries add to counters, histograms and
    summaries.
    """
    families = _families(_lines(_text(body), is_openmetrics(content_type))[0])
    found = Reader[Labels](lambda labels: labels, max_known=0, max_new=MAX_LINES).read(body, content_type)
    samples = found.samples if created else [one for one in found.samples if not _is_created(one[0], families)]
    return Parsed(
        samples=samples,
        lines=found.lines,
        bad=found.bad,
        bad_count=found.bad_count,
        truncated=found.truncated,
        families=families,
    )


def family_sums(samples: Iterable[tuple[Labels, float, int | None]]) -> dict[str, float]:
    """The sum over the series of each name: all engines, all models. NaN is no number and is left out."""
    sums: dict[str, float] = {}
    for labels, value, _ in samples:
        if value == value:
            name = name_of(labels)
            sums[name] = sums.get(name, 0.0) + value
    return sums


def name_of(labels: Labels) -> str:
    """The metric's name among the labels, or nothing."""
    return next((value for label, value in labels if label == NAME), "")


def is_openmetrics(content_type: str) -> bool:
    """Whether the content type is OpenMetrics; all else is read as the classic format."""
    return content_type.partition(";")[0].strip().lower() == OPENMETRICS


def _text(body: bytes) -> str:
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    head = text[:1024].lstrip()
    if head.startswith("<"):
        raise _refusal("it is a web page or XML")
    if _JSON.match(head):
        raise _refusal("it is JSON")
    return text.replace("\r\n", "\n") if "\r" in text else text


def _lines(text: str, openmetrics: bool) -> tuple[list[str], bool]:
    """The lines, and whether an OpenMetrics answer was cut off; then its last line is not trusted to be whole."""
    lines = text.split("\n", MAX_LINES)
    if not openmetrics or not text.strip() or len(lines) > MAX_LINES:
        return lines, False
    if "# EOF" in lines:
        return lines[: lines.index("# EOF")], False
    return lines[:-1], True


def _families(lines: Iterable[str]) -> dict[str, Metadata]:
    parts: dict[str, dict[str, str]] = {}
    for line in lines:
        fields = line.split(None, 3) if line[:1] == "#" else ()
        if len(fields) >= 3 and fields[0] == "#" and fields[1] in ("TYPE", "HELP", "UNIT"):
            text = fields[3].rstrip() if len(fields) > 3 else ""
            parts.setdefault(_plain(fields[2]), {})[fields[1].lower()] = _plain(text)
    return {name: Metadata(**fields) for name, fields in parts.items()}


def _plain(text: str) -> str:
    """Escapes undone; a quoted name without its quotes."""
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    return unescape(text)


def _is_created(labels: Labels, families: Mapping[str, Metadata]) -> bool:
    base, created, rest = name_of(labels).rpartition(_CREATED)
    if not created or rest:
        return False
    return any(name in families and families[name].type in _WITH_CREATED for name in (base, f"{base}_total"))


def _refusal(reason: str) -> ExpositionError:
    return ExpositionError(
        f"not a Prometheus text exposition: {reason}", remedy="check that the address is a vLLM server's"
    )
