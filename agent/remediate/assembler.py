"""An assembler that does not know the card: point Triton at one that does, proven before it is set.

Which variable Triton reads depends on its version and the architecture (triton/backends/nvidia/compiler.py
``get_ptxas``): up to 3.5 ``TRITON_PTXAS_PATH``; 3.6 to 3.8 ``TRITON_PTXAS_BLACKWELL_PATH`` for arch >= 100;
from 3.9 the latter for arch >= 90. The installed Triton is asked where the launcher can
(``assembler_variable``); where neither is known both are set. Triton's bundled assemblers know every
architecture of their time, so the usual culprit is a variable that points at an old CUDA toolkit: unsetting
it is the first candidate when the bundled one assembles.

Never: a path that is not root-owned (the launcher refuses it too), or one that was not seen to assemble.
"""

from __future__ import annotations

import re

from agent.model import AssemblerFacts, Cause
from agent.remediate.guard import Policy
from agent.remediate.overrides import merged
from agent.remediate.plan import Plan, Precondition
from agent.remediate.proving import proofs_of
from agent.remediate.quantities import version
from agent.remediate.situation import AssemblerCandidate, Situation

ACTION = "ptxas-path"
CLASSIC, BLACKWELL = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"
BUNDLED_NAME = {CLASSIC: "ptxas", BLACKWELL: "ptxas-blackwell"}


def architecture(text: str | None) -> int | None:
    """``sm_103a`` -> 103."""
    found = re.search(r"(?:sm_|compute_)?(\d{2,3})[a-z]?$", (text or "").strip())
    return int(found.group(1)) if found else None


def variables(triton: str | None, arch: int | None) -> tuple[str, ...]:
    """The variables that decide, by the table above; both where version or architecture leave it open."""
    found = version(triton)
    if found is None:
        return (CLASSIC, BLACKWELL)
    if found <= (3, 5):
        return (CLASSIC,)
    if arch is None:
        return (CLASSIC, BLACKWELL)
    threshold = 100 if found <= (3, 8) else 90
    return (BLACKWELL,) if arch >= threshold else (CLASSIC,)


def plans(cause: Cause, situation: Situation, policy: Policy) -> tuple[Plan, ...]:
    """One plan a candidate, the operator's own wrong variable first."""
    facts = cause.facts if isinstance(cause.facts, AssemblerFacts) else AssemblerFacts()
    names = _names(situation, facts)
    unset = _unsetting(situation, names, facts)
    tries = (*unset, *_setting(situation, names, facts, {chosen.path for _, chosen, _ in unset}))
    return tuple(
        Plan(
            action=ACTION,
            change=", ".join(f"unset {name}" if value is None else f"{name}={value}" for name, value in env.items()),
            mode=situation.mode(ACTION),
            delta=merged(situation.overrides, env=env),
            why=(
                _needs(facts, situation, names),
                f"{chosen.path} ({chosen.version or 'version unknown'}) {seen}",
            ),
            precondition=f"{chosen.path} still assembles a stub for {facts.arch or 'the card'}",
            check=_still_assembles(chosen),
            bounds=("root-owned folders only, or Triton's own bundled program", "one candidate at a time"),
            cost="one restart",
            undo="rolled back at once when it does not cure; else agent overrides clear",
            proofs=proofs_of(cause.finding.fault, policy),
        )
        for env, chosen, seen in tries
    )


_Try = tuple[dict[str, str | None], AssemblerCandidate, str]


def _names(situation: Situation, facts: AssemblerFacts) -> tuple[str, ...]:
    if situation.assembler_variable is not None:
        return (situation.assembler_variable,)
    return variables(situation.triton_version, architecture(facts.arch))


def _value(situation: Situation, name: str) -> str | None:
    return situation.overrides.env[name] if name in situation.overrides.env else situation.env.get(name)


def _unsetting(situation: Situation, names: tuple[str, ...], facts: AssemblerFacts) -> tuple[_Try, ...]:
    """Unset what points at the refusing program, when the bundled one that takes its place assembles."""
    wrong = {name: _value(situation, name) for name in (CLASSIC, BLACKWELL)}
    decisive = [name for name in names if wrong[name]]
    if not decisive:
        return ()
    bundled = next((it for it in situation.assemblers if it.bundled and it.assembles and _is(it, decisive)), None)
    if bundled is None:
        return ()
    culprits = {wrong[name] for name in decisive} | {facts.path}
    env: dict[str, str | None] = {name: None for name, value in wrong.items() if value and value in culprits}
    return ((env, bundled, "is bundled with Triton, assembles, and is used once the variable is gone"),)


def _is(candidate: AssemblerCandidate, names: list[str]) -> bool:
    """Whether the bundled program is one that these variables would replace. One file of its own name in a
    Triton that has no second assembler serves both."""
    return candidate.path.rsplit("/", 1)[-1] in {BUNDLED_NAME[name] for name in names}


def _setting(
    situation: Situation, names: tuple[str, ...], facts: AssemblerFacts, offered: set[str]
) -> tuple[_Try, ...]:
    """Point the variables at a proven program, newest first; ``offered`` comes into use by unsetting."""
    refused = {facts.path, *offered, *(_value(situation, name) for name in names)}
    usable = [it for it in situation.assemblers if it.root_owned and it.assembles and it.path not in refused]
    usable.sort(key=lambda it: version(it.version) or (0, 0), reverse=True)
    return tuple(
        (dict.fromkeys(names, it.path), it, "is root-owned and assembled a stub for this architecture") for it in usable
    )


def _needs(facts: AssemblerFacts, situation: Situation, names: tuple[str, ...]) -> str:
    refused = f"{facts.path or 'the assembler in use'} does not know {facts.arch or 'this architecture'}"
    if situation.assembler_variable is not None:
        return f"{refused}; the installed Triton reads {names[0]} for it"
    if len(names) > 1:
        return f"{refused}; which variable decides is not known, so both are set: {' and '.join(names)}"
    return f"{refused}; Triton {situation.triton_version} reads {names[0]} for it (table by version and architecture)"


def _still_assembles(chosen: AssemblerCandidate) -> Precondition:
    def check(now: Situation) -> str | None:
        found = next((it for it in now.assemblers if it.path == chosen.path), None)
        if found is None:
            return f"{chosen.path} is gone"
        if not found.assembles:
            return f"{chosen.path} does not assemble now: {found.error or 'no reason given'}"
        return None if found.bundled or found.root_owned else f"{chosen.path} is no longer root-owned"

    return check
