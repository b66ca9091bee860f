"""Alerts for the tests of notifiers."""

from __future__ import annotations

from datetime import datetime, timedelta

from agent.model import Alert, AlertState, rfc3339


def alert(
    now: datetime,
    state: AlertState = AlertState.FIRING,
    *,
    name: str = "VLLMTimeToFirstTokenHigh",
    severity: str = "warning",
    ended: datetime | None = None,
    description: str = "p99 is 2.1 s, the target is 0.5 s",
) -> Alert:
    """An alert that became active a minute before ``now``."""
    return Alert(
        server="s1",
        labels={"alertname": name, "severity": severity, "model_name": "m", "instance": "127.0.0.1:8000"},
        annotations={"summary": "The first token is late", "description": description},
        state=state,
        active_at=rfc3339(now - timedelta(seconds=60)),
        starts_at=rfc3339(now) if state is not AlertState.PENDING else None,
        ends_at=rfc3339(ended) if ended is not None else None,
        value=2.1,
        runbook="https://runbooks.example/VLLMTimeToFirstTokenHigh",
    )
