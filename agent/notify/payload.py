"""Incidents and alerts in Alertmanager's words: labels that route, annotations that people read.

In: an incident or an alert. Out: one alert object of Alertmanager's API v2 (openapi.yaml, ``postableAlert``), and the
payload of its webhook receiver (template version 4), which most receivers of alerts understand already. An incident is
the alert ``VLLMIncident``, labelled with its class. Secrets are taken out here, because here text leaves the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent import __version__
from agent.launch import redact
from agent.model import Alert, AlertState, Incident
from agent.notify.message import cause, cut, next_step
from agent.notify.notifier import Subject

INCIDENT_ALERT = "VLLMIncident"
_ANNOTATION_LIMIT = 4000
_LABEL = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")

Posted = dict[str, object]


def labels_of_subject(subject: Subject) -> dict[str, str]:
    """The identity of the alert; Alertmanager refuses empty values and odd names, so they are left out."""
    if isinstance(subject, Alert):
        labels = {"server": subject.server, **subject.labels}
    else:
        labels = {
            "alertname": INCIDENT_ALERT,
            "server": subject.server,
            "class": subject.fault,
            "incident": subject.id,
            "severity": subject.severity.value,
        }
        if subject.mechanism is not None:
            labels["mechanism"] = subject.mechanism.value
    return {name: redact(value) for name, value in labels.items() if value and _LABEL.match(name)}


def annotations_of(subject: Subject) -> dict[str, str]:
    """What people read, each bounded to a few thousand characters."""
    texts = dict(subject.annotations) if isinstance(subject, Alert) else _incident_texts(subject)
    return {name: cut(redact(text), _ANNOTATION_LIMIT) for name, text in texts.items() if text and _LABEL.match(name)}


def _incident_texts(incident: Incident) -> dict[str, str]:
    evidence = "\n".join(f"{one.where}: {one.text}" for one in incident.evidence[:5])
    done = "\n".join(f"{one.action}: {one.change} ({one.state.value})" for one in incident.actions[-8:])
    return {
        "summary": f"{cause(incident)} on {incident.server}",
        "description": incident.summary,
        "evidence": evidence,
        "actions": done,
        "next_step": next_step(incident) or "",
        "state": incident.state.value,
    }


def starts_at(subject: Subject) -> str:
    """RFC 3339."""
    return subject.opened_at if isinstance(subject, Incident) else (subject.starts_at or subject.active_at)


def ended_at(subject: Subject) -> str | None:
    """When it ended, None while it goes on."""
    if isinstance(subject, Incident):
        return (subject.resolved_at or subject.opened_at) if subject.state.closed else None
    return subject.ends_at if subject.state is AlertState.RESOLVED else None


def postable(subject: Subject, ends_at: str) -> Posted:
    """One alert for ``POST /api/v2/alerts``."""
    return {
        "labels": labels_of_subject(subject),
        "annotations": annotations_of(subject),
        "startsAt": starts_at(subject),
        "endsAt": ends_at,
    }


def webhook_payload(subject: Subject, document: Mapping[str, object]) -> Posted:
    """The payload of Alertmanager's webhook with one alert in it, and the agent's own document beside it."""
    labels, annotations = labels_of_subject(subject), annotations_of(subject)
    end = ended_at(subject)
    status = "firing" if end is None else "resolved"
    alert = {
        "status": status,
        "labels": labels,
        "annotations": annotations,
        "startsAt": starts_at(subject),
        "endsAt": end or "0001-01-01T00:00:00Z",  # Go's zero time, as Alertmanager writes it
        "generatorURL": "",
        "fingerprint": "",
    }
    kind = "incident" if isinstance(subject, Incident) else "alert"
    return {
        "version": "4",
        "groupKey": f"{labels['alertname']}:{labels.get('server', '')}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "vllm-agent",
        "groupLabels": {"alertname": labels["alertname"]},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [alert],
        "agent": {"version": __version__, "kind": kind, kind: document},
    }
