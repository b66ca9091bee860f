"""What the remediator must remember of an incident across restarts of the agent, beyond the incident itself.

The cause with its facts (the published incident carries them as text only), and how often a change was
proven.
"""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec

from agent.model import Action, ActionState, Cause, Finding, Incident, Retry
from agent.remediate.overrides import as_arguments, empty
from agent.remediate.ports import Ledger

USES_BEFORE_PERMANENT = 2
BEGINNING = datetime(2000, 1, 1, tzinfo=timezone.utc)


def remember_cause(ledger: Ledger, incident: Incident, cause: Cause) -> None:
    """Kept until the incident is closed."""
    ledger.kv_set(_key(incident), msgspec.json.encode(cause).decode())


def forget_cause(ledger: Ledger, incident: Incident) -> None:
    """The incident is closed."""
    ledger.kv_set(_key(incident), None)


def remembered(ledger: Ledger, incident: Incident) -> bool:
    """Whether a cause was ever named for this incident."""
    return ledger.kv_get(_key(incident)) is not None


def recall_cause(ledger: Ledger, incident: Incident) -> Cause:
    """The cause as remembered; without its facts where nothing readable was kept."""
    text = ledger.kv_get(_key(incident))
    if text is not None:
        try:
            return msgspec.json.decode(text.encode(), type=Cause)
        except msgspec.MsgspecError:
            pass
    return Cause(
        finding=Finding(
            fault=incident.fault,
            mechanism=incident.mechanism,
            confidence=incident.confidence,
            severity=incident.severity,
            summary=incident.summary,
            evidence=incident.evidence,
        ),
        retry=Retry.UNKNOWN,
    )


def permanent(ledger: Ledger, incident: Incident, action: Action) -> str | None:
    """After the second proven use of one change: how to make it part of the operator's command."""
    if empty(action.delta):
        return None
    past = ledger.actions_since(incident.server, incident.fault, BEGINNING)
    others = {it.id for it in past if it.state is ActionState.VERIFIED and it.delta == action.delta} - {action.id}
    uses = len(others) + 1
    if uses < USES_BEFORE_PERMANENT:
        return None
    return f"proven {uses} times, make it permanent: add {as_arguments(action.delta)}"


def _key(incident: Incident) -> str:
    return f"remediate/cause/{incident.id}"
