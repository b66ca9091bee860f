"""Whether an engine that makes no progress is stalled: positive evidence or nothing.

In: how long nothing has moved while work was there, what the processes and the GPU did meanwhile, what was decoding
when it froze. Out: the evidence in words, or None. None is the normal answer to silence, because a long prefill looks
the same from outside: no series moves until its step ends, and a request sent meanwhile waits behind it. A wrong
"stalled" makes a kubelet kill a healthy server, a missing one costs the time until a person looks.

| evidence | for how long |
|---|---|
| a process of the engine is stopped (T, t) | 5 s, with nothing moved for 10 s (5 s where a canary waits) |
| a process of the engine is blocked in the kernel (D), no CPU used, GPU not busy | 30 s |
| nobody computes: no CPU used, GPU idle or none; requests were decoding | 10 s and 3 of the longest gaps |
| the same, nothing was decoding (an adapter or a transfer may be under way) | 30 s |
| two or more were decoding, no CPU used, the GPU's work is not known | 30 s and 3 gaps |
| two or more were decoding, their tokens stopped at once | 120 s and 10 gaps |

The last one rests on chunked prefill: decoding requests get a token in every step, and no step that the engine has
made in ten minutes was a tenth as long. It does not count where the CPU computes and the GPU rests: so does a kernel
that is being compiled, or a server that has no GPU.
"""

from __future__ import annotations

import msgspec

from agent.watch.activity import Activity, Computing, GpuWork
from agent.watch.progress import Progress
from agent.watch.shape import Shape

QUIET_SECONDS = 10.0
LONGEST_QUIET_SECONDS = 120.0
GAPS = 3.0
HALT_SECONDS = 5.0
NOBODY_SECONDS = 30.0
FROZEN_SECONDS = 120.0
FROZEN_GAPS = 10.0
STEADY_SCRAPES = 3


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """One engine with work and without movement. ``flat``: seconds; ``asked``: an unanswered canary is the work."""

    engine: str
    now: float
    flat: float
    asked: bool
    progress: Progress
    activity: Activity
    shape: Shape


def suspect_after(progress: Progress, now: float) -> float:
    """Seconds without movement from which an engine is suspect: its own longest gap tells what is usual."""
    return min(LONGEST_QUIET_SECONDS, max(QUIET_SECONDS, GAPS * progress.longest_gap(now)))


def evidence(case: Silence) -> str | None:
    """Why the engine is stalled, or None where nothing proves it."""
    return _halted(case) or _blocked(case) or _nobody(case) or _frozen(case)


def _halted(case: Silence) -> str | None:
    halted = case.activity.halted(case.engine, case.now)
    needed = HALT_SECONDS if case.asked else QUIET_SECONDS
    if halted is None or halted.seconds < HALT_SECONDS or case.flat < needed:
        return None
    return str(halted)


def _blocked(case: Silence) -> str | None:
    blocked = case.activity.halted(case.engine, case.now, "D")
    if blocked is None or min(blocked.seconds, case.flat) < NOBODY_SECONDS or _gpu_busy(case):
        return None
    return str(blocked) if case.activity.cpu_flat(case.engine, case.now, NOBODY_SECONDS) else None


def _nobody(case: Silence) -> str | None:
    """Where part of the engine is elsewhere, or all that waits is waiting for another node, rest is no evidence. Nor is
    it where a busy API server may not have handed the canary on (long prompts are cut into tokens there).
    """
    if not case.shape.whole or _only_deferred(case.progress):
        return None
    if case.asked and case.activity.api_busy(case.now, NOBODY_SECONDS):
        return None
    window = suspect_after(case.progress, case.now) if _decoding(case.progress, 1) else NOBODY_SECONDS
    if case.flat < window or case.activity.computing(case.engine, case.now, QUIET_SECONDS) is not Computing.NOBODY:
        return None
    if case.activity.computing(case.engine, case.now, min(window, NOBODY_SECONDS)) is not Computing.NOBODY:
        return None
    return f"nobody computes: neither its processes nor a GPU have worked for {min(window, NOBODY_SECONDS):.0f} s"


def _frozen(case: Silence) -> str | None:
    if not (case.shape.chunked and _decoding(case.progress, 2)):
        return None
    gap = case.progress.longest_gap(case.now)
    count = f"{case.progress.decoders:.0f} requests were decoding and got no token at once"
    rests = case.shape.whole and case.activity.cpu_flat(case.engine, case.now, NOBODY_SECONDS)
    if rests and not _gpu_busy(case) and case.flat >= max(NOBODY_SECONDS, GAPS * gap):
        return f"{count}, and its processes use no CPU"
    if case.flat < max(FROZEN_SECONDS, FROZEN_GAPS * gap) or _computes_on_cpu(case):
        return None
    return f"{count}; the longest step of the last ten minutes took {gap:.0f} s"


def _decoding(progress: Progress, least: int) -> bool:
    """A mean over steps: anything above one less than ``least`` would do, a half above is asked for."""
    return progress.decoders >= least - 0.5 and progress.steady >= STEADY_SCRAPES


def _only_deferred(progress: Progress) -> bool:
    last = progress.last
    return last is not None and not last.running and bool(last.waiting) and last.held_back == 0


def _gpu_busy(case: Silence) -> bool:
    return case.activity.gpu(NOBODY_SECONDS) is GpuWork.BUSY


def _computes_on_cpu(case: Silence) -> bool:
    if case.activity.computing(case.engine, case.now, QUIET_SECONDS) is not Computing.SOMEBODY:
        return False
    return not _gpu_busy(case)
