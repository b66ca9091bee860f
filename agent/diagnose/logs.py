"""`agent diagnose --log`: whole files in, one published diagnosis out.

Reads files, pipes and gzip alike, a megabyte at a time. Several logs are several views of one server. Only
the logs are decisive here, so what a log cannot show is listed as not measured rather than taken for good.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from agent.diagnose.catalogue import Catalogue
from agent.diagnose.conclude import conclude
from agent.diagnose.merge import merge
from agent.diagnose.session import MAX_LINE, LogSession
from agent.diagnose.start import Start
from agent.errors import UsageError
from agent.model import Cause, Confidence, Context, Diagnosis, Finding, NotMeasured, Severity, Verdict

CHUNK = 1 << 20


class LogSource:
    """One log: a name for ``file:line`` and a binary stream. gzip is seen by its first bytes."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self.name = name
        self.note: str | None = None
        self._stream = stream

    @classmethod
    def open(cls, path: Path) -> LogSource:
        """Open a file. Raises UsageError where it is missing, a folder or not readable."""
        try:
            if path.is_dir():
                raise UsageError("is a folder", where=str(path), remedy="name a log file in it")
            return cls(str(path), path.open("rb"))
        except FileNotFoundError as error:
            raise UsageError("no such file", where=str(path), remedy="check the path after --log") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"cannot be read: {reason}", where=str(path), remedy="check its permissions") from error

    def chunks(self) -> Iterator[bytes]:
        """The decompressed bytes. A damaged end is noted, what came before it is kept."""
        try:
            first = self._stream.read(CHUNK)
            if first[:2] == b"\x1f\x8b":
                yield from self._gunzip(first)
                return
            while first:
                yield first
                first = self._stream.read(CHUNK)
        except OSError as error:
            self.note = f"reading stopped: {error.strerror or error}"
        finally:
            self._stream.close()

    def _gunzip(self, data: bytes) -> Iterator[bytes]:
        inflater = zlib.decompressobj(wbits=31)
        try:
            while data:
                yield inflater.decompress(data, CHUNK)
                data = inflater.unconsumed_tail
                if inflater.eof:
                    data = inflater.unused_data or self._stream.read(CHUNK)
                    if data:
                        inflater = zlib.decompressobj(wbits=31)
                elif not data:
                    data = self._stream.read(CHUNK)
        except zlib.error as error:
            self.note = f"the gzip data is damaged ({error}); what came before was read"
            return
        if not inflater.eof:
            self.note = "the gzip data ends early; what came before was read"


def diagnose_logs(
    sources: Sequence[LogSource],
    catalogue: Catalogue,
    context: Context = Context(),  # noqa: B008 (frozen)
) -> Diagnosis:
    """Read every source to its end and name the cause."""
    sessions: list[LogSession] = []
    spans: list[_Span] = []
    for source in sources:
        session, span = LogSession(catalogue, source=source.name), _Span()
        for chunk in source.chunks():
            session.feed(chunk)
            span.see(chunk)
        session.finish()
        sessions.append(session)
        spans.append(span)
    last = merge([session.start for session in sessions])
    causes = conclude(last, catalogue, context)
    findings = [cause.finding for cause in causes]
    findings += _earlier(sessions, catalogue)
    return Diagnosis(
        verdict=_verdict(findings, last),
        target=", ".join(source.name for source in sources),
        window_seconds=_window(spans),
        findings=tuple(findings),
        not_measured=_not_measured(sources, sessions, context),
    )


def _earlier(sessions: Sequence[LogSession], catalogue: Catalogue) -> list[Finding]:
    """What ended earlier starts in the same log: context, since the last start decides."""
    found: dict[str, Finding] = {}
    for session in sessions:
        for start in reversed(session.earlier):
            for cause in conclude(start, catalogue, Context())[:1]:
                if cause.finding.severity is not Severity.INFO:
                    found.setdefault(cause.finding.fault, _as_context(cause))
    return list(found.values())[:3]


def _as_context(cause: Cause) -> Finding:
    import msgspec

    return msgspec.structs.replace(
        cause.finding,
        severity=Severity.INFO,
        confidence=Confidence.LIKELY,
        summary=f"An earlier start in this log failed: {cause.finding.summary}",
        remedies=(),
    )


def _verdict(findings: Sequence[Finding], start: Start) -> Verdict:
    severities = {finding.severity for finding in findings}
    if Severity.CRITICAL in severities:
        return Verdict.CRITICAL
    if Severity.WARNING in severities:
        return Verdict.WARNING
    clean = start.ready or start.shutdown or (start.ended and not start.failed)
    return Verdict.HEALTHY if clean else Verdict.UNKNOWN


def _not_measured(
    sources: Sequence[LogSource], sessions: Sequence[LogSession], context: Context
) -> tuple[NotMeasured, ...]:
    missing: list[NotMeasured] = []
    for source, session in zip(sources, sessions, strict=True):
        if source.note:
            missing.append(NotMeasured(check=f"the rest of {source.name}", reason=source.note))
        if session.cut_lines:
            check = f"the rest of {session.cut_lines} long lines of {source.name}"
            missing.append(NotMeasured(check=check, reason=f"only the first {MAX_LINE >> 10} KiB of a line are read"))
        if not session.lines:
            missing.append(NotMeasured(check=source.name, reason="the log is empty"))
    only = "only logs were given"
    if context.exit is None:
        missing.append(NotMeasured(check="exit code, signal and the cgroup's oom_kill counter", reason=only))
    if context.gpus is None:
        missing.append(NotMeasured(check="who holds GPU memory now", reason=only))
    missing.append(NotMeasured(check="metrics and health of the server", reason=only))
    return tuple(missing)


_STAMP = re.compile(rb"(?:(\d{4})-)?\b(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")


class _Span:
    """First and last time stamp of a log, from the fronts and ends of its chunks."""

    def __init__(self) -> None:
        self.first: datetime | None = None
        self.last: datetime | None = None

    def see(self, chunk: bytes) -> None:
        if self.first is None:
            self.first = _stamp(_STAMP.search(chunk[: 1 << 16]))
        stamps = list(_STAMP.finditer(chunk[-(1 << 13) :]))
        self.last = (_stamp(stamps[-1]) if stamps else None) or self.last


def _stamp(match: re.Match[bytes] | None) -> datetime | None:
    if match is None:
        return None
    month, day, hour, minute, second = (int(part) for part in match.groups()[1:])
    try:
        # Without a year any leap year does: only differences are used.
        return datetime(int(match.group(1) or 2000), month, day, hour, minute, second)
    except ValueError:
        return None


def _window(spans: Sequence[_Span]) -> float | None:
    known = [(span.first, span.last) for span in spans if span.first and span.last]
    if not known or len({first.year for first, _ in known} | {last.year for _, last in known}) > 1:
        return None
    seconds = (max(last for _, last in known) - min(first for first, _ in known)).total_seconds()
    return seconds if seconds >= 0 else None
