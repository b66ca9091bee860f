"""An incident in Slack's words: the cause first, the numbers, what was done, what to do next.

In: an incident. Out: ``text`` (what a phone shows) and ``blocks`` within Slack's limits: header 150
characters, field 2,000, section 3,000, about 13,000 in total. What comes from logs is shown as it is and
not as markup, so a log line can neither ping a channel nor draw a link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from agent import __version__
from agent.launch import redact
from agent.model import Action, ActionState, Incident, IncidentState

Block = dict[str, object]

_HEADER, _FIELD, _SECTION, _EVIDENCE = 150, 600, 2900, 2600
_MARKS = {
    IncidentState.OPEN: ":rotating_light:",
    IncidentState.ACTING: ":wrench:",
    IncidentState.AWAITING_APPROVAL: ":raised_hand:",
    IncidentState.VERIFYING: ":mag:",
    IncidentState.RESOLVED: ":white_check_mark:",
    IncidentState.UNRESOLVED: ":x:",
}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to Slack."""

    text: str
    blocks: list[Block]

    @property
    def fingerprint(self) -> str:
        """A short name for the content: equal contents are one message."""
        return hashlib.blake2s(repr((self.text, self.blocks)).encode(), digest_size=8).hexdigest()


def render(incident: Incident, runbook_base_url: str | None = None) -> Message:
    """The message for an incident as it is now."""
    head = f"{incident.state.value}: {cause(incident)} on {incident.server}"
    blocks: list[Block] = [
        {
            "type": "header",
            "text": {"type": "plain_text", "text": cut(f"{_MARKS[incident.state]} {head}", _HEADER)},
        },
        _section(say(incident.summary)),
        {"type": "section", "fields": [_markdown(cut(field, _FIELD)) for field in _fields(incident)]},
    ]
    if incident.evidence:
        blocks.append(_section(_evidence(incident)))
    if incident.actions:
        blocks.append(_section("*What was done*\n" + "\n".join(_action(one) for one in incident.actions[-8:])))
    if advice := next_step(incident):
        blocks.append(_section(f"*What to do*\n{say(advice)}"))
    blocks.append({"type": "context", "elements": [_markdown(cut(_context(incident, runbook_base_url), _FIELD))]})
    text = f"{head}. {incident.summary}"
    return Message(text=cut(say(text), _SECTION), blocks=blocks)


def cause(incident: Incident) -> str:
    """``oom-serving (fragmentation)``."""
    return f"{incident.fault} ({incident.mechanism.value})" if incident.mechanism else incident.fault


def next_step(incident: Incident) -> str | None:
    """What a person should do now, if anything."""
    lines = []
    for action in incident.actions:
        if action.state is ActionState.AWAITING_APPROVAL:
            until = f" before {action.expires_at}" if action.expires_at else ""
            lines.append(f"agent approve {action.id}   or   agent deny {action.id}{until}")
    if incident.note:
        lines.append(incident.note)
    if not lines and incident.state is IncidentState.UNRESOLVED:
        lines.append("Nothing safe is left to try: read the evidence, repair by hand, then `agent breaker reset`.")
    return "\n".join(lines) or None


def escape(text: str) -> str:
    """Slack's three control characters and the fence of a code block, so that text stays text."""
    text = text.replace("```", "'''")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def say(text: str) -> str:
    """Text that came from outside, fit to leave: without secrets, and only text."""
    return escape(redact(text))


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _fields(incident: Incident) -> list[str]:
    fields = [
        f"*Server*\n{escape(incident.server)}",
        f"*Severity*\n{incident.severity.value}",
        f"*Confidence*\n{incident.confidence.value}",
        f"*Opened*\n{incident.opened_at}",
    ]
    if incident.resolved_at:
        fields.append(f"*Closed*\n{incident.resolved_at}")
    if incident.explains:
        fields.append(f"*Explains*\n{escape(', '.join(incident.explains))}")
    return fields


def _evidence(incident: Incident) -> str:
    lines = [f"{one.where}: {one.text}" for one in incident.evidence[:5]]
    # Cut first and escape then, so that no entity is cut in two; what grew too long is cut again.
    text = cut("\n".join(cut(line, 700) for line in lines), _EVIDENCE)
    escaped = say(text)
    while len(escaped) > _EVIDENCE:
        text = cut(text, len(text) * 3 // 4)
        escaped = say(text)
    return f"*Evidence*\n```{escaped}```"


def _action(action: Action) -> str:
    line = f"• {action.action}: {action.change} — *{action.state.value}*"
    if action.outcome:
        line += f" ({action.outcome})"
    why: Sequence[str] = action.why[:6]
    return cut("\n".join([say(line), *(f"      {say(reason)}" for reason in why)]), 900)


def _context(incident: Incident, runbook_base_url: str | None) -> str:
    parts = [f"incident {incident.id}", f"agent {__version__}", f"`agent incident {incident.id}`"]
    if incident.runbook and runbook_base_url:
        parts.append(f"<{runbook_base_url.rstrip('/')}/{incident.runbook}|runbook>")
    return "  ·  ".join(parts)


def _section(text: str) -> Block:
    return {"type": "section", "text": _markdown(cut(text, _SECTION))}


def _markdown(text: str) -> Block:
    # Verbatim: else Slack itself makes links of bare URLs and #names, and parses @here (docs.slack.dev, text object).
    return {"type": "mrkdwn", "text": text, "verbatim": True}
