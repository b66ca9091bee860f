"""An alert in Slack's words, and which alerts are told as messages at all.

In: an alert that fires or has resolved. Out: a message with the name and the server first, the numbers as the rule's
author wrote them, since when, and the runbook. ``info`` alerts are neither paged nor a ticket, so nobody is sent a
message about them; they stand in the API and go to Alertmanager.
"""

from __future__ import annotations

import hashlib

from agent import __version__
from agent.model import Alert, AlertState, Severity
from agent.notify.message import Block, Message, cut, escape, say

ALERT_TOPIC = "alert:"
_MARKS = {"critical": ":rotating_light:", "warning": ":warning:"}
_HIDDEN = frozenset({"alertname", "severity"})


def worth_telling(alert: Alert) -> bool:
    """Firing or resolved, and not merely information."""
    return alert.state is not AlertState.PENDING and alert.labels.get("severity") != Severity.INFO.value


def alert_topic(alert: Alert) -> str:
    """One topic per label set and firing; begins with :data:`ALERT_TOPIC`."""
    mark = hashlib.blake2s(alert.fingerprint.encode(), digest_size=10).hexdigest()
    return f"{ALERT_TOPIC}{mark}:{alert.starts_at or alert.active_at}"


def render_alert(alert: Alert) -> Message:
    """The message for an alert as it is now."""
    resolved = alert.state is AlertState.RESOLVED
    head = f"{'resolved' if resolved else 'firing'}: {alert.name} on {alert.server}"
    mark = ":white_check_mark:" if resolved else _MARKS.get(alert.labels.get("severity", ""), ":bell:")
    summary = alert.annotations.get("summary", "")
    description = alert.annotations.get("description", "")
    blocks: list[Block] = [_header(f"{mark} {head}")]
    blocks += [_section(say(text)) for text in (summary, description) if text]
    blocks.append({"type": "section", "fields": [_markdown(cut(field, 600)) for field in _fields(alert)]})
    blocks.append({"type": "context", "elements": [_markdown(_context(alert))]})
    text = ". ".join(part for part in (head, summary, description) if part)
    return Message(text=cut(say(text), 2900), blocks=blocks)


def _fields(alert: Alert) -> list[str]:
    others = sorted((name, value) for name, value in alert.labels.items() if name not in _HIDDEN)
    fields = [f"*Severity*\n{escape(alert.labels.get('severity', 'not given'))}", f"*Since*\n{alert.starts_at}"]
    if alert.ends_at is not None and alert.state is AlertState.RESOLVED:
        fields.append(f"*Ended*\n{alert.ends_at}")
    if others:
        fields.append("*Labels*\n" + say(", ".join(f"{name}={value}" for name, value in others)))
    return fields


def _context(alert: Alert) -> str:
    parts = [f"agent {__version__}"]
    link = alert.runbook or alert.annotations.get("runbook_url")
    if link and link.startswith(("http://", "https://")):
        parts.append(f"<{escape(link)}|runbook>")
    return cut("  ·  ".join(parts), 1900)


def _header(text: str) -> Block:
    return {"type": "header", "text": {"type": "plain_text", "text": cut(text, 150)}}


def _section(text: str) -> Block:
    return {"type": "section", "text": _markdown(cut(text, 2900))}


def _markdown(text: str) -> Block:
    return {"type": "mrkdwn", "text": text, "verbatim": True}
