"""A diagnosis as text for three in the morning, as JSON for programs, as Markdown for a ticket; and its
exit code."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.model import Diagnosis, Finding, Severity, Verdict

OUTPUTS = ("text", "json", "markdown")
FAIL_ON = ("info", "warning", "critical")
_COLOURS = {
    Severity.CRITICAL: "\x1b[1;31m",
    Severity.WARNING: "\x1b[1;33m",
    Severity.INFO: "\x1b[1;36m",
}
_RESET = "\x1b[0m"


def exit_code(diagnosis: Diagnosis, fail_on: str = "warning") -> int:
    """0 healthy, 1 warning, 2 critical, 3 unknown. ``fail_on`` ``info`` makes info findings 1, ``critical``
    lets warnings pass; unknown stays 3 whatever it says."""
    if diagnosis.verdict is Verdict.UNKNOWN:
        return 3
    if diagnosis.verdict is Verdict.CRITICAL:
        return 2
    if diagnosis.verdict is Verdict.WARNING:
        return 0 if fail_on == "critical" else 1
    return 1 if fail_on == "info" and diagnosis.findings else 0


def render(diagnosis: Diagnosis, output: str = "text", color: bool = False) -> str:
    """The diagnosis as ``text``, ``json`` or ``markdown``, without a trailing newline."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()
    return _markdown(diagnosis) if output == "markdown" else _text(diagnosis, color)


def _label(finding: Finding) -> str:
    mechanism = f" ({finding.mechanism.value})" if finding.mechanism else ""
    return f"{finding.fault}{mechanism}"


def _text(diagnosis: Diagnosis, color: bool) -> str:
    lines: list[str] = []
    for finding in diagnosis.findings:
        lines += [*_finding_text(finding, color), ""]
    if not diagnosis.findings:
        lines += [_NOTHING[diagnosis.verdict], ""]
    if diagnosis.not_measured:
        lines.append("Not measured")
        lines += [f"  {item.check}: {item.reason}" for item in diagnosis.not_measured]
        lines.append("")
    window = "" if diagnosis.window_seconds is None else f", {diagnosis.window_seconds:g} s of log"
    lines.append(f"Verdict: {diagnosis.verdict.value} ({diagnosis.target}{window})")
    return "\n".join(lines)


_NOTHING = {
    Verdict.HEALTHY: "No fault found.",
    Verdict.UNKNOWN: "No fault found, but the log shows neither a completed start nor a clean end.",
}


def _finding_text(finding: Finding, color: bool) -> list[str]:
    head = f"{finding.severity.value.upper()}  {_label(finding)}  [{finding.confidence.value}]"
    lines = [f"{_COLOURS[finding.severity]}{head}{_RESET}" if color else head]
    lines += [f"  {line}" for line in _wrap(finding.summary)]
    if finding.explains:
        lines.append(f"  Also seen, explained by this: {', '.join(finding.explains)}")
    if finding.remedies:
        lines.append("  What to do")
        for number, remedy in enumerate(finding.remedies, 1):
            lines.append(f"    {number}. {remedy.change}  [{remedy.action}, {remedy.mode.value}]")
            lines.append(f"       because {remedy.why}")
            lines.append(f"       undo: {remedy.undo}")
    if finding.runbook:
        lines.append(f"  Runbook: {finding.runbook}")
    if finding.evidence:
        lines.append("  Evidence")
        lines += [f"    {item.where}  {item.text}" for item in finding.evidence]
    return lines


def _wrap(text: str, width: int = 110) -> Sequence[str]:
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _markdown(diagnosis: Diagnosis) -> str:
    lines = [f"# Diagnosis: {diagnosis.verdict.value}", "", f"Target: `{diagnosis.target}`", ""]
    for finding in diagnosis.findings:
        lines += [f"## {_label(finding)}", "", f"*{finding.severity.value}, {finding.confidence.value}*", ""]
        lines += [_escape(finding.summary), ""]
        if finding.explains:
            lines += [f"Explains: {', '.join(finding.explains)}", ""]
        if finding.remedies:
            lines += ["| what to do | action | mode | why | undo |", "| --- | --- | --- | --- | --- |"]
            for remedy in finding.remedies:
                cells = (remedy.change, remedy.action, remedy.mode.value, remedy.why, remedy.undo)
                lines.append("| " + " | ".join(_escape(cell) for cell in cells) + " |")
            lines.append("")
        if finding.runbook:
            lines += [f"Runbook: `{finding.runbook}`", ""]
        lines += [f"- `{item.where}` {_escape(item.text)}" for item in finding.evidence]
        lines.append("")
    if not diagnosis.findings:
        lines += [_NOTHING[diagnosis.verdict], ""]
    if diagnosis.not_measured:
        lines += ["## Not measured", ""]
        lines += [f"- {_escape(item.check)}: {_escape(item.reason)}" for item in diagnosis.not_measured]
    return "\n".join(lines).rstrip()


def _escape(text: str) -> str:
    return "".join(f"\\{c}" if c in "|*_<>`#[]" else c for c in text.replace("\\", "\\\\"))
