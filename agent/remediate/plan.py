"""One way to repair a cause, complete with its arithmetic, bounds, cost, undo and proofs.

Made by the planning functions, carried out by the :class:`Remediator`. A plan does nothing by itself. It
carries its own precondition as a function, because what was true when it was made (a free card, an assembler
that assembles) is asked again right before acting.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from agent.model import Change, Mode, Proof
from agent.remediate.situation import Situation

Precondition = Callable[[Situation], str | None]
"""Given the situation now: None = the plan still holds, else the reason why it does not."""


def always(_: Situation) -> str | None:
    """The precondition of a plan that depends on nothing that can change."""
    return None


class Preparation(str, enum.Enum):
    """What is done before the restart."""

    NONE = "none"
    WAIT_FOR_MEMORY = "wait-for-memory"
    END_ORPHANS = "end-orphans"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``delta`` is the *whole* override set after the action, not the difference.

    ``needed_bytes`` on card ``gpu`` is what WAIT_FOR_MEMORY waits for, ``wait_seconds`` at most.
    """

    action: str
    change: str
    mode: Mode
    delta: Change
    why: tuple[str, ...] = ()
    precondition: str = ""
    check: Precondition = always
    bounds: tuple[str, ...] = ()
    cost: str = ""
    undo: str = ""
    proofs: tuple[Proof, ...] = ()
    preparation: Preparation = Preparation.NONE
    gpu: int | None = None
    needed_bytes: int | None = None
    wait_seconds: float = 0.0

    @property
    def key(self) -> str:
        """Two plans with one key are the same try; a try is made once in an incident."""
        return f"{self.action} {self.change}"
