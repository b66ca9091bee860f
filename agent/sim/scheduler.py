"""The scheduler of the stand-in's engine: which requests run in a step, with how many tokens and blocks.

In come requests (prompt length and the hashes of its full blocks) and one call of `step` a step; out comes a
`Step` that says who got tokens. It follows vLLM's V1 scheduler in what is visible from outside: running
requests first, then waiting ones up to ``max_num_seqs``; one token budget a step, so long prompts are
prefilled in chunks; blocks of the prefix cache are shared; when no block is left the last running request is
preempted and starts over. It does no I/O, knows no clock and never fails a request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field


@dataclass
class Sequence:
    """One request inside the engine; lengths in tokens."""

    id: int
    prompt: int
    max_tokens: int
    hashes: list[int] = field(default_factory=list)
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    cached: int = 0
    preemptions: int = 0
    name: str = ""

    @property
    def length(self) -> int:
        return self.prompt + self.generated


@dataclass
class Step:
    """What one step did. ``new`` and ``started`` (ran for the first time) are ids.

    ``finished`` holds (id, reason, preemptions, prompt tokens that came from the cache).
    """

    scheduled: dict[int, int] = field(default_factory=dict)
    new: list[int] = field(default_factory=list)
    finished: list[tuple[int, str, int, int]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    preempted: int = 0


class Scheduler:
    """State of all requests of one engine."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_tokens: int,
        blocks: int,
        block_size: int,
        max_len: int,
        prefix_caching: bool,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.budget = max_tokens
        self.blocks = blocks
        self.block_size = block_size
        self.max_len = max_len
        self.prefix_caching = prefix_caching
        self.used = 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._cache: OrderedDict[int, None] = OrderedDict()

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def abort(self, ids: set[int]) -> None:
        """Forget these requests and give their blocks back."""
        for sequence in [s for s in self.running if s.id in ids]:
            self._release(sequence)
        self.running = [s for s in self.running if s.id not in ids]
        self.waiting = deque(s for s in self.waiting if s.id not in ids)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def usage(self) -> float:
        """Share of the KV blocks that requests hold, 0 to 1."""
        return self.used / self.blocks if self.blocks else 0.0

    def plan(self) -> Step:
        """Decide the next step: tokens for running requests, then admissions. Nothing is computed yet."""
        step = Step()
        budget = self.budget
        for sequence in list(self.running):
            if sequence not in self.running:
                continue
            wanted = min(sequence.length - sequence.computed, budget)
            if wanted <= 0 or not self._grow(sequence, wanted, step):
                continue
            step.scheduled[sequence.id] = wanted
            budget -= wanted
        if not step.preempted:
            self._admit(step, budget)
        return step

    def _admit(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            hit = self._cached_tokens(sequence)
            wanted = min(sequence.length - hit, budget)
            if not self._take(sequence, hit + wanted):
                return
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.computed = hit
            if sequence.preemptions == 0:
                step.started.append(sequence.id)
                sequence.cached = hit
            step.queried_tokens += sequence.prompt if self.prefix_caching else 0
            step.cached_tokens += hit
            step.scheduled[sequence.id] = wanted
            budget -= wanted

    def finish(self, step: Step) -> None:
        """The planned step has been computed: advance lengths, emit tokens, end those that are done."""
        for sequence in list(self.running):
            count = step.scheduled.get(sequence.id)
            if count is None:
                continue
            fresh = max(0, min(count, sequence.prompt - sequence.computed))
            step.prompt_tokens += fresh
            sequence.computed += count
            if sequence.computed < sequence.length:
                continue
            self._remember(sequence)
            sequence.generated += 1
            step.new.append(sequence.id)
            if sequence.generated >= sequence.max_tokens or sequence.length >= self.max_len:
                step.finished.append((sequence.id, "length", sequence.preemptions, sequence.cached))
                self._release(sequence)
                self.running.remove(sequence)

    def _grow(self, sequence: Sequence, tokens: int, step: Step) -> bool:
        """Blocks for ``tokens`` more, preempting from the end where none is left; False if it hit itself."""
        while not self._take(sequence, sequence.computed + tokens):
            victim = self.running.pop()
            self._release(victim)
            step.scheduled.pop(victim.id, None)
            victim.computed = 0
            victim.preemptions += 1
            step.preempted += 1
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _take(self, sequence: Sequence, tokens: int) -> bool:
        wanted = -(-tokens // self.block_size) - sequence.blocks
        if wanted > 0 and self.used + wanted > self.blocks:
            return False
        self.used += max(0, wanted)
        sequence.blocks += max(0, wanted)
        return True

    def _release(self, sequence: Sequence) -> None:
        self.used -= sequence.blocks
        sequence.blocks = 0

    def _cached_tokens(self, sequence: Sequence) -> int:
        """Tokens of the leading blocks that the cache holds; the last token is always computed."""
        if not self.prefix_caching:
            return 0
        count = 0
        for value in sequence.hashes:
            if value not in self._cache:
                break
            self._cache.move_to_end(value)
            count += 1
        return min(count * self.block_size, max(0, (sequence.prompt - 1) // self.block_size * self.block_size))

    def _remember(self, sequence: Sequence) -> None:
        if not self.prefix_caching or sequence.generated:
            return
        for value in sequence.hashes:
            self._cache[value] = None
        while len(self._cache) > self.blocks:
            self._cache.popitem(last=False)
