"""One engine of a server: serving, saturated, paused, stalled or unknown.

In: its samples, and what its server's processes and canaries say. Out: a state with its reason. Once stalled it stays
so until something moves or somebody is seen computing, so that one missed reading does not make a probe flap.
"""

from __future__ import annotations

from agent.model import State
from agent.watch.activity import Activity, Computing
from agent.watch.canaries import IDLE_SECONDS, Canaries
from agent.watch.pressure import Pressure
from agent.watch.progress import EngineSample, Progress
from agent.watch.shape import Shape
from agent.watch.stall import QUIET_SECONDS, Silence, evidence, suspect_after


class Engine:
    """All times are monotonic seconds."""

    def __init__(self, name: str, activity: Activity, canaries: Canaries) -> None:
        self.name = name
        self.progress = Progress()
        self._activity = activity
        self._canaries = canaries
        self._pressure = Pressure()
        self._stalled: str | None = None
        self._disturbed = False
        self._beat: float | None = None

    # -- what is observed ---------------------------------------------------------------------------------

    def saw(self, sample: EngineSample) -> None:
        """Its part of one scrape."""
        if self.progress.saw(sample, learn=not self._disturbed):
            self._alive()
        self._pressure.saw(sample)

    def beat(self, value: float, at: float) -> None:
        """A counter of the engine's own loop."""
        if self._beat is not None and value != self._beat:
            self.touched(at)
        self._beat = value

    def touched(self, at: float) -> None:
        """A sign of life beside the series."""
        self.progress.touched(at)
        self._alive()

    def rested(self, at: float) -> None:
        """It was paused up to now: its silence was asked for, and says nothing of its steps."""
        self.touched(at)
        self._disturbed = True

    def _alive(self) -> None:
        self._stalled, self._disturbed = None, False
        self._canaries.settled(self.name)

    # -- what is asked of it ------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether its last step left requests in it."""
        return self.progress.last is not None and self.progress.last.busy

    @property
    def proven_at(self) -> float:
        """When it was last seen to work, or was last asked."""
        result = self._canaries.results.get(self.name)
        return max(self.progress.moved_at or 0.0, result.ended_at if result else 0.0)

    def moved_within(self, seconds: float, now: float) -> bool:
        """Whether a scrape of the last ``seconds`` saw it move."""
        return self.progress.moved_at is not None and now - self.progress.moved_at <= seconds

    def flat(self, now: float) -> float | None:
        """Seconds without movement while there was work; None without work. Time that no scrape covers is not
        counted.
        """
        last, asked = self.progress.last, self._canaries.waiting_since(self.name)
        until = now if last is None else last.at
        if last is not None and last.busy:
            return max(0.0, until - self.progress.quiet_since(until))
        if asked is None:
            return None
        return max(0.0, until - max(asked, self.progress.moved_at or asked))

    def idle(self, now: float) -> bool:
        """No work, and for a while nothing that proved it able to do any."""
        return not self.busy and now - self.proven_at >= IDLE_SECONDS

    def idle_and_halted(self, now: float) -> bool:
        """No work, and a process that stands still: worth a question at once."""
        return not self.busy and self._activity.halted(self.name, now) is not None

    def suspect(self, now: float) -> bool:
        """Work, and no movement for longer than it usually takes."""
        flat = self.flat(now)
        return self.busy and flat is not None and flat >= suspect_after(self.progress, now)

    def wants_look(self, now: float, seconds: float) -> bool:
        """Whether its processes should be read now: it is flat under work, or it has just become idle."""
        flat = self.flat(now)
        return self.moved_within(QUIET_SECONDS, now) if flat is None else flat >= seconds or not self.busy

    # -- what is judged -----------------------------------------------------------------------------------

    def judge(self, now: float, shape: Shape, pause_asked_at: float | None) -> tuple[State, str]:
        """Its state now, with the reason. ``pause_asked_at``: when it was last asked whether it is paused."""
        last = self.progress.last
        if last is not None and last.awake is False:
            self.rested(now)
            return State.PAUSED, "asleep (vllm:engine_sleep_state)"
        if self._activity.halted(self.name, now) is not None:
            self._disturbed = True
        flat = self.flat(now)
        if flat is not None:
            asked = pause_asked_at is not None and pause_asked_at > now - flat
            silent = self._judge_silence(flat, now, shape, may_stall=asked)
            if silent is not None:
                return silent
        if self._pressure.reason is not None:
            return State.SATURATED, self._pressure.reason
        return State.SERVING, "it makes progress" if self.busy or self.moved_within(QUIET_SECONDS, now) else "idle"

    def _judge_silence(self, flat: float, now: float, shape: Shape, *, may_stall: bool) -> tuple[State, str] | None:
        asked = not self.busy
        case = Silence(
            engine=self.name,
            now=now,
            flat=flat,
            asked=asked,
            progress=self.progress,
            activity=self._activity,
            shape=shape,
        )
        proof = evidence(case) if may_stall else None
        if proof is None and self._stalled is not None and not self._computes(now):
            proof = self._stalled
        self._stalled = proof
        if proof is not None:
            return State.STALLED, f"no progress for {flat:.0f} s {self._work(asked)}: {proof}"
        if flat < suspect_after(self.progress, now):
            return None
        return State.UNKNOWN, f"no progress for {flat:.0f} s {self._work(asked)}; a long prefill looks the same"

    def _computes(self, now: float) -> bool:
        return self._activity.computing(self.name, now, QUIET_SECONDS) is Computing.SOMEBODY

    def _work(self, asked: bool) -> str:
        last = self.progress.last
        if asked or last is None:
            return "while a canary waits for its token"
        return f"with {last.running or 0:.0f} running and {last.waiting or 0:.0f} waiting"
