"""From a cause to a proven repair: plan, guard, act through the launcher, prove, keep or roll back.

In: a :class:`agent.model.Cause` and a :class:`Situation` (the watcher's). Out: actions in the journal, verbs
to the launcher, an :class:`agent.model.Incident` that ends resolved or unresolved with a note for a person.
Planning is pure (:func:`plan`, :func:`advise`); only the :class:`Remediator` acts, and only through
:class:`Hands`.
"""

from agent.remediate.advice import advise
from agent.remediate.guard import BreakerRecord, Guard, Policy
from agent.remediate.overrides import from_wire
from agent.remediate.plan import Plan, Preparation
from agent.remediate.planning import plan
from agent.remediate.ports import Hands, Ledger, Observer, SituationSource, View
from agent.remediate.remediator import Remediator
from agent.remediate.situation import AssemblerCandidate, Situation

__all__ = [
    "AssemblerCandidate",
    "BreakerRecord",
    "Guard",
    "Hands",
    "Ledger",
    "Observer",
    "Plan",
    "Policy",
    "Preparation",
    "Remediator",
    "Situation",
    "SituationSource",
    "View",
    "advise",
    "from_wire",
    "plan",
]
