"""The face of execution, written against by the watcher; see :class:`Remediator`."""

from __future__ import annotations

from agent.model import Action, Cause, Clock, Incident
from agent.remediate.guard import Guard
from agent.remediate.ports import Hands, Ledger, Observer, SituationSource, View


class Remediator:
    """Pursues the incidents of one server, one at a time."""

    def __init__(
        self,
        *,
        server: str,
        hands: Hands | None,
        view: View,
        ledger: Ledger,
        guard: Guard,
        clock: Clock,
        on_change: Observer,
    ) -> None:
        """``hands`` None = attached only: everything is proposed, nothing is done."""
        raise NotImplementedError

    async def pursue(self, incident: Incident, cause: Cause, source: SituationSource) -> Incident:
        """Repair ``cause``; returns the incident resolved or unresolved. Never raises for a fault of the server."""
        raise NotImplementedError

    async def resume(self, incident: Incident, source: SituationSource) -> Incident:
        """Go on with an incident that was open when the agent ended: verification and approvals continue, nothing
        is executed twice."""
        raise NotImplementedError

    def approve(self, action_id: str, actor: str) -> Action:
        """A person allows a pending action. Raises AgentError when it is unknown, decided or expired."""
        raise NotImplementedError

    def deny(self, action_id: str, actor: str) -> Action:
        """A person refuses a pending action. Raises as :meth:`approve`."""
        raise NotImplementedError

    @property
    def stay_down(self) -> bool:
        """True while the dead server must not be restarted unchanged (a start failure that needs a change, or an
        open breaker): the watcher renews ``hold`` while this is true and the server is dead."""
        raise NotImplementedError
