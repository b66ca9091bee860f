"""An incident as text for a person at night: the cause first, then why, what was done, what to do.

In: incidents. Out: plain text without control characters (log lines are evidence, and a log line may try
to paint the terminal).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.model import Action, ActionState, Incident, IncidentState, parse_rfc3339


def incident_table(incidents: Sequence[Incident]) -> str:
    """One line each."""
    if not incidents:
        return "no incidents"
    rows = [("ID", "OPENED", "STATE", "SERVER", "CAUSE", "SUMMARY")]
    for one in incidents:
        rows.append((one.id, one.opened_at[:19] + "Z", one.state.value, one.server, _cause(one), one.summary))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        cells = [plain(cell).ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, _cut(plain(row[5]), 100)]).rstrip())
    return "\n".join(lines)


def incident_page(incident: Incident) -> str:
    """The whole incident."""
    return "\n".join(_page(incident))


def plain(text: str) -> str:
    """Without control characters; line breaks become spaces."""
    return "".join(char if char.isprintable() else " " for char in text)


def _page(incident: Incident) -> Iterator[str]:
    yield f"{incident.state.value.upper()}  {_cause(incident)}  on {incident.server}  ({incident.id})"
    yield plain(incident.summary)
    yield ""
    yield f"severity    {incident.severity.value}, {incident.confidence.value}"
    yield f"opened      {incident.opened_at}{_after_exit(incident)}"
    if incident.resolved_at:
        yield f"closed      {incident.resolved_at}"
    if incident.explains:
        yield f"explains    {', '.join(incident.explains)}"
    if incident.runbook:
        yield f"runbook     {incident.runbook}"
    if incident.evidence:
        yield "\nevidence"
        for one in incident.evidence:
            yield f"  {plain(one.source)} {plain(one.where)}: {_cut(plain(one.text), 400)}"
    if incident.actions:
        yield "\nactions"
        for action in incident.actions:
            yield from _action(action)
    if advice := list(_advice(incident)):
        yield "\noutcome" if incident.state is IncidentState.RESOLVED else "\nwhat to do"
        for line in advice:
            yield f"  {plain(line)}"


def _action(action: Action) -> Iterator[str]:
    yield f"  {action.id}  {action.action}  [{action.state.value}]  {plain(action.change)}"
    for reason in action.why:
        yield f"      why     {plain(reason)}"
    for proof in action.proof:
        if proof.passed is None and action.state.final:
            continue  # never begun
        verdict = {None: "open", True: "yes", False: "no"}[proof.passed]
        subject = f" {proof.subject}" if proof.subject else ""
        detail = f": {plain(proof.detail)}" if proof.detail else ""
        yield f"      proof   {proof.kind}{subject} — {verdict}{detail}"
    if action.outcome_beyond_proof:
        yield f"      result  {plain(action.outcome_beyond_proof)}"
    if action.cost and action.state is ActionState.AWAITING_APPROVAL:
        yield f"      cost    {plain(action.cost)}"
    if action.undo and action.state in (ActionState.VERIFIED, ActionState.AWAITING_APPROVAL):
        yield f"      undo    {plain(action.undo)}"


def _advice(incident: Incident) -> Iterator[str]:
    for action in incident.actions:
        if action.state is ActionState.AWAITING_APPROVAL:
            until = f", before {action.expires_at}" if action.expires_at else ""
            yield f"agent approve {action.id}   or   agent deny {action.id}{until}"
    if incident.note:
        yield from incident.note.splitlines()
    elif incident.state is IncidentState.UNRESOLVED:
        yield "Nothing safe is left to try: repair by hand, then `agent breaker reset`."


def _cause(incident: Incident) -> str:
    return f"{incident.fault} ({incident.mechanism.value})" if incident.mechanism else incident.fault


def _after_exit(incident: Incident) -> str:
    if incident.exited_at is None:
        return ""
    try:
        seconds = (parse_rfc3339(incident.opened_at) - parse_rfc3339(incident.exited_at)).total_seconds()
    except ValueError:
        return ""
    side = "after" if seconds >= 0 else "before"
    return f" ({abs(seconds):.3f} s {side} the exit at {incident.exited_at})"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
