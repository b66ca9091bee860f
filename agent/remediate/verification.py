"""Collecting the proofs of a repair, failing as soon as the server dies again.

In: the proofs that a plan must bring and the view of the server. Out: the proofs with what was seen, and one
outcome. It never acts. Three things end it early: the server died (failed, seconds after it happened), a
person stopped the server (interrupted), the deadline of a proof (failed). What cannot be measured (no metrics
endpoint) is said and does not fail a repair: unknown is no disproof, the other proofs decide.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from agent.model import Clock, Proof, State
from agent.remediate import proving
from agent.remediate.ports import View

POLL_SECONDS = 2.0
REQUEST_GAP_SECONDS = 0.5
SERVES = frozenset({State.SERVING, State.SATURATED})
ASKED_AWAY = frozenset({State.STOPPED, State.DRAINING})
# An asked restart of a living server shows as "stopped" until the new process is there, and the launcher
# may wait for GPU memory meanwhile. Only longer than this, or after the new start, is it a person's wish.
OWN_STOP_SECONDS = 120.0
FALLBACK_TOKENS = "vllm:prompt_tokens_total"
FINISHED = "vllm:request_success_total"


class Outcome(str, enum.Enum):
    """``interrupted``: a person took the server away, so nothing was proven or refuted."""

    VERIFIED = "verified"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """``served``: the new start became ready, so a failure after it is one of serving."""

    outcome: Outcome
    proofs: tuple[Proof, ...]
    reason: str
    served: bool = False


class Verifier:
    """Judges the start that follows start number ``base``."""

    def __init__(self, view: View, clock: Clock, base: int) -> None:
        self._view = view
        self._clock = clock
        self._base = base
        self._counters: dict[str, float] = {}
        self._begun = clock.monotonic()
        self._request_sent = True

    async def verify(self, proofs: tuple[Proof, ...]) -> Verification:
        """Collect ``proofs`` in order; the first that fails ends it."""
        done: list[Proof] = []
        served = False
        for position, proof in enumerate(proofs):
            outcome, passed, detail = await self._collect(proof)
            done.append(msgspec.structs.replace(proof, passed=passed, detail=detail))
            served = served or (proof.kind == proving.SERVING and passed is True)
            if outcome is not Outcome.VERIFIED:
                rest = proofs[position + 1 :]
                return Verification(outcome=outcome, proofs=(*done, *rest), reason=detail, served=served)
        seen = "; ".join(proof.detail for proof in done if proof.detail)
        return Verification(outcome=Outcome.VERIFIED, proofs=tuple(done), reason=seen, served=served)

    async def _collect(self, proof: Proof) -> tuple[Outcome, bool | None, str]:
        collectors = {
            proving.SERVING: self._serving,
            proving.REQUEST_ANSWERED: self._answered,
            proving.METRIC_ADVANCED: self._advanced,
            proving.LOG_LINE_ABSENT: self._absent,
        }
        collector = collectors.get(proof.kind)
        if collector is None:
            return Outcome.VERIFIED, None, f"proof {proof.kind} is not known: not measured"
        return await collector(proof)

    def _lost(self) -> tuple[Outcome, bool | None, str] | None:
        """The verdict when the server is no longer there, else None."""
        seq = self._view.start_seq()
        if seq > self._base + 1 or (seq == self._base + 1 and self._view.ended()):
            return Outcome.FAILED, False, "the server died again"
        ours = seq <= self._base and self._clock.monotonic() - self._begun < OWN_STOP_SECONDS
        if self._view.state() in ASKED_AWAY and not ours:
            return Outcome.INTERRUPTED, None, "a person stopped the server"
        return None

    async def _serving(self, proof: Proof) -> tuple[Outcome, bool | None, str]:
        begun = self._clock.monotonic()
        while True:
            lost = self._lost()
            if lost is not None:
                return lost
            elapsed = self._clock.monotonic() - begun
            if self._view.start_seq() > self._base and self._view.state() in SERVES:
                self._remember()
                return Outcome.VERIFIED, True, f"serving after {elapsed:.1f} s"
            if elapsed >= proof.within_seconds:
                state = self._view.state().value
                return Outcome.FAILED, False, f"still {state} after {elapsed:.0f} s"
            await self._view.wait_change(min(POLL_SECONDS, proof.within_seconds - elapsed))

    def _remember(self) -> None:
        """Counters at the first moment of serving; a new start begins at zero."""
        for name in (proving.TOKENS, FALLBACK_TOKENS, FINISHED):
            value = self._view.metric(name)
            if value is not None:
                self._counters[name] = value

    async def _answered(self, proof: Proof) -> tuple[Outcome, bool | None, str]:
        begun = self._clock.monotonic()
        while True:
            lost = self._lost()
            if lost is not None:
                return lost
            answered, seen = await self._view.request_answered()
            if answered is not False:
                self._request_sent = answered is True
                return Outcome.VERIFIED, answered, seen
            elapsed = self._clock.monotonic() - begun
            if elapsed >= proof.within_seconds:
                return Outcome.FAILED, False, f"no request answered in {elapsed:.0f} s: {seen}"
            # A log that pours out errors wakes us at every line; it must not make us pour out requests.
            await self._clock.sleep(min(REQUEST_GAP_SECONDS, proof.within_seconds - elapsed))
            await self._view.wait_change(min(POLL_SECONDS, proof.within_seconds - elapsed))

    async def _advanced(self, proof: Proof) -> tuple[Outcome, bool | None, str]:
        begun = self._clock.monotonic()
        names = (proof.subject or proving.TOKENS, FALLBACK_TOKENS)
        while True:
            lost = self._lost()
            if lost is not None:
                return lost
            for name in names:
                value = self._view.metric(name)
                if value is not None and value > self._counters.get(name, 0.0):
                    return Outcome.VERIFIED, True, f"{name} advanced to {value:g}"
            elapsed = self._clock.monotonic() - begun
            if elapsed >= proof.within_seconds:
                return self._flat(names, elapsed)
            await self._view.wait_change(min(POLL_SECONDS, proof.within_seconds - elapsed))

    def _flat(self, names: tuple[str, ...], elapsed: float) -> tuple[Outcome, bool | None, str]:
        if all(self._view.metric(name) is None for name in names):
            return Outcome.VERIFIED, None, f"{names[0]} not measured: the server shows no such metric"
        if not self._request_sent:
            return Outcome.VERIFIED, None, f"{names[0]} not measured: no request could be sent and none arrived"
        return Outcome.FAILED, False, f"{names[0]} did not advance in {elapsed:.0f} s"

    async def _absent(self, proof: Proof) -> tuple[Outcome, bool | None, str]:
        fault = proof.subject or ""
        begun, finished = self._clock.monotonic(), self._view.metric(FINISHED)
        while True:
            if self._view.log_seen(fault):
                return Outcome.FAILED, False, f"a line of {fault} came again"
            lost = self._lost()
            if lost is not None:
                return lost
            elapsed = self._clock.monotonic() - begun
            if elapsed >= proof.within_seconds:
                return (
                    Outcome.VERIFIED,
                    True,
                    f"no line of {fault} in {elapsed:.0f} s, {self._traffic(finished)}",
                )
            await self._view.wait_change(min(POLL_SECONDS, proof.within_seconds - elapsed))

    def _traffic(self, before: float | None) -> str:
        now = self._view.metric(FINISHED)
        if now is None:
            return "traffic not measured"
        count = now - (before or 0.0)
        return f"{count:g} requests finished meanwhile" if count > 0 else "no request arrived meanwhile"
