"""The log of one server, fed as bytes while it is written; the watcher's view of it.

In: chunks of any size, cut anywhere. Out: signals as lines complete, and on demand the causes and the
effective settings. Never raises on what a log may hold (binary, colours, carriage returns, half lines,
megabyte lines), never keeps more than one bounded line and the bounded start. A file may hold several
starts: a banner after an end begins the next, the earlier ones stay as context.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from agent.diagnose.catalogue import Catalogue
from agent.diagnose.conclude import conclude
from agent.diagnose.line import strip_controls, unwrap
from agent.diagnose.redact import redact
from agent.diagnose.scan import THROUGHPUT, Scanner, Slot
from agent.diagnose.settings import effective_settings
from agent.diagnose.start import Signal, Start
from agent.model import Cause, Context, EffectiveSettings

BLOCK = 1 << 16
SMALL_BLOCK = 1 << 12
MAX_LINE = 1 << 18  # beyond it a line's rest is dropped: the words of an error stand at its front
_MAX_PARTS = 400
_THROUGHPUT = THROUGHPUT.encode()


class LogSession:
    """Reads one log; one object per start under a watcher. Cheap to feed, safe to feed anything."""

    def __init__(self, catalogue: Catalogue, *, source: str) -> None:
        self._catalogue = catalogue
        self._scanner = _scanner(catalogue)
        self._source = source
        self._rest = b""
        self._dropping = False
        self._lines = 0
        self.cut_lines = 0  # lines longer than MAX_LINE, of which only the beginning was judged
        self.start = Start()
        self.earlier: list[Start] = []

    @property
    def started(self) -> bool:
        """Whether "Application startup complete" was seen in this start."""
        return self.start.ready is not None

    @property
    def shutdown_requested(self) -> bool:
        """Whether somebody asked for the end before any error."""
        return self.start.shutdown is not None

    @property
    def progress(self) -> str | None:
        """What a start is doing, None once it serves or before it says anything."""
        return self.start.progress

    @property
    def last_error_line(self) -> str | None:
        """The latest exception or fault line, redacted."""
        return redact(self.start.last_error) if self.start.last_error else None

    @property
    def lines(self) -> int:
        """Complete lines read."""
        return self._lines

    def feed(self, data: bytes) -> tuple[Signal, ...]:
        """Take the next bytes; return the signals of the lines that they complete."""
        if self._dropping:
            cut = data.find(b"\n")
            if cut < 0:
                return ()
            data, self._dropping = data[cut:], False
        buffer = self._rest + data if self._rest else data
        end = buffer.rfind(b"\n") + 1
        self._rest = buffer[end:]
        if len(self._rest) > MAX_LINE:
            self._rest, self._dropping = self._rest[:MAX_LINE], True
            self.cut_lines += 1
        return tuple(signal for block in _blocks(buffer, end, BLOCK) for signal in self._block(strip_controls(block)))

    def finish(self) -> tuple[Signal, ...]:
        """The log ends here: take a last line that has no newline."""
        rest, self._rest, self._dropping = self._rest, b"", False
        return tuple(self._block(strip_controls(rest) + b"\n")) if rest else ()

    def conclude(self, context: Context = Context()) -> tuple[Cause, ...]:  # noqa: B008 (frozen)
        """The causes, most likely first; empty where nothing is wrong."""
        return conclude(self.start, self._catalogue, context)

    def settings(self, context: Context = Context()) -> EffectiveSettings:  # noqa: B008 (frozen)
        """What the engine runs with, each value with the place that says so."""
        return effective_settings(self.start, context)

    def _block(self, block: bytes, *, whole: bool = True) -> Iterator[Signal]:
        """Whole lines. A block that hits is looked at in smaller ones, so that few lines are looked at one by one."""
        found = self._scanner.matches(block)
        if not found:
            self._lines += block.count(b"\n")
        elif self._scanner.routine(found):
            yield from self._throughput(block)
        elif whole:
            for part in _blocks(block, len(block), SMALL_BLOCK):
                yield from self._block(part, whole=False)
        else:
            for raw in block.split(b"\n")[:-1]:
                yield from self._raw(raw)

    def _throughput(self, block: bytes) -> Iterator[Signal]:
        """A block in which only throughput lines count."""
        position = 0
        while (found := block.find(_THROUGHPUT, position)) >= 0:
            begin, end = block.rfind(b"\n", position, found) + 1 or position, block.index(b"\n", found)
            self._lines += block.count(b"\n", position, begin)
            yield from self._raw(block[begin:end])
            position = end + 1
        self._lines += block.count(b"\n", position)

    def _raw(self, raw: bytes) -> Iterator[Signal]:
        self._lines += 1
        if numbers := self._scanner.matches(raw):
            yield from self._line(raw, numbers)

    def _line(self, raw: bytes, numbers: list[int]) -> Iterator[Signal]:
        where = f"{self._source}:{self._lines}"
        self.cut_lines += len(raw) > MAX_LINE
        parts = unwrap(raw[:MAX_LINE])
        if len(parts) == 1 and not raw.startswith(b"{"):
            yield from self._part(parts[0], [self._scanner.slots[n] for n in sorted(numbers)], where)
            return
        for part in parts[:_MAX_PARTS] + parts[_MAX_PARTS:][-_MAX_PARTS:]:
            yield from self._part(part, list(self._scanner.hits(part.encode("utf-8", "replace"))), where)

    def _part(self, text: str, slots: list[Slot], where: str) -> list[Signal]:
        if not slots or any(slot.noise for slot in slots):
            return []
        if any("banner" in slot.milestones for slot in slots) and self.start.over():
            self.earlier = [*self.earlier[-7:], self.start]
            self.start = Start()
        signals = self.start.take(text, slots, where, self._lines)
        # The watcher and its notifiers repeat a signal's text: no secret may pass here either.
        return [_redacted(signal) for signal in signals]


def _redacted(signal: Signal) -> Signal:
    import msgspec

    return msgspec.structs.replace(signal, text=redact(signal.text))


def _blocks(buffer: bytes, end: int, size: int) -> Iterator[bytes]:
    """Whole lines in blocks of about ``size`` bytes."""
    position = 0
    while position < end:
        cut = buffer.find(b"\n", min(position + size, end - 1)) + 1
        yield buffer[position:cut]
        position = cut


@lru_cache(maxsize=4)
def _scanner(catalogue: Catalogue) -> Scanner:
    return Scanner(catalogue)
