"""What planning may know: everything about the server at one moment, read by the watcher and never by
planning.

Comes in from the watcher (log settings, launcher status and probes), goes to the planning functions and to
the precondition that is checked again right before acting. It holds no handle on anything: a plan made from
it is a pure function of it, so that every number in an incident can be worked out again from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model import Action, Change, EffectiveSettings, GpuReading, Mode, Setting, State


class AssemblerCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One ptxas that the launcher's ``probe ptxas`` found.

    ``assembles`` is the answer of really assembling a stub for the architecture that failed; None = not
    tried. A program bundled with Triton comes into use by unsetting the variable.
    """

    path: str
    version: str | None = None
    root_owned: bool = False
    assembles: bool | None = None
    error: str | None = None

    @property
    def bundled(self) -> bool:
        """Whether it is Triton's own: it lies in Triton's package (triton/backends/nvidia/bin)."""
        return "/triton/backends/" in self.path


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The server at one moment.

    ``settings``: what the newest start really ran with. ``overrides``: the whole override set in force.
    ``argv``, ``env``: the operator's own command and variables, without the overrides. ``gpus``: the cards
    that the server sees, in the server's own order (GPU 0 of a log line is ``gpus[0]``); None = not measured,
    () = no card. ``start_failed``: the newest start ended before it was ready. ``modes``: how each action may
    be taken; an action that is not named there needs approval. ``has_hands``: a launcher owns the server;
    False = attached only. ``previous``: the actions of this incident so far, oldest first.
    ``assembler_variable``: the variable that the installed Triton itself reads for the failing architecture,
    None where it could not be asked. ``running_requests``, ``scheduled_tokens``: the size of the very step
    that died, only from the engine's own dump (vllm/logging_utils/dump_input.py), never from a scraped gauge,
    which is older than the burst. ``debugged``: which process a debugger holds, in words; None = none is known.
    """

    settings: EffectiveSettings
    overrides: Change = Change()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    gpus: tuple[GpuReading, ...] | None = None
    state: State = State.UNKNOWN
    vllm_version: str | None = None
    triton_version: str | None = None
    can_append_flags: bool = True
    has_hands: bool = True
    start_failed: bool = False
    modes: Mapping[str, Mode] = {}
    previous: tuple[Action, ...] = ()
    assemblers: tuple[AssemblerCandidate, ...] = ()
    assembler_variable: str | None = None
    running_requests: Setting | None = None
    scheduled_tokens: Setting | None = None
    debugged: str | None = None

    def mode(self, action: str) -> Mode:
        """The mode of ``action``; what nobody decided needs approval."""
        return self.modes.get(action, Mode.APPROVE)

    def multi_node(self) -> str | None:
        """Why this server may not be restarted alone (a node of several), or None."""
        nodes = self.settings.nnodes
        if nodes is not None and int(nodes.value) > 1:
            return f"{nodes.value} nodes ({nodes.source})"
        if "--headless" in self.argv:
            return "--headless on the command line"
        return None
