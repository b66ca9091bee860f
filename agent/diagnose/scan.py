"""All patterns of the catalogue and of the milestones as one RE2 set.

A catalogue in, a compiled :class:`Scanner` out, which says for a block or a line of bytes which patterns
are in it. The set is one automaton, so its cost does not grow with the catalogue; asking it about whole
blocks first is what makes ordinary log lines nearly free. It never says where in the line: the few lines
that hit are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import re2

from agent.diagnose.catalogue import Catalogue, Fault, Phase, Signature

# The periodic line of vllm/v1/metrics/loggers.py; literal, so that it can be found without a regular expression.
THROUGHPUT = "Avg prompt throughput: "

# Start-up lines of vLLM 0.4 to 0.33 and uvicorn: (name, pattern).
MILESTONES: tuple[tuple[str, str], ...] = (
    ("banner", r"vLLM API server version \d"),
    ("banner", r"(?:█|\\u2588).*version v?\d"),
    ("arguments", r"non-default args: \{"),
    ("arguments", r"api_server\.py:\d+\] args: Namespace\("),
    ("engine", r"Initializing an? (?:V\d )?LLM engine \(v"),
    ("batched-tokens", r"Chunked prefill is enabled with max_num_batched_tokens="),
    ("model-length", r"Using max model len \d"),
    ("pool", r"Available KV cache memory: *-?[0-9.]"),
    ("pool", r"Explicitly set \([0-9.]+/[0-9.]+\) GiB for KV cache"),
    ("pool-size", r"KV cache size: [0-9,]+ tokens|# (?:GPU|CUDA|cuda|CPU|cpu) blocks: \d"),
    ("loading", r"Starting to load model |Loading model from scratch|checkpoint shards: +\d+%"),
    ("loaded", r"Model loading took |Loading model weights took "),
    ("compiling", r"Dynamo bytecode transform time|Compiling a graph for|torch_compile_cache/"),
    (
        "capturing",
        r"Capturing (?:CUDA|cuda)[ -]?graphs?|Capturing the model for CUDA graphs|Capturing cudagraphs",
    ),
    ("captured", r"Graph capturing finished"),
    ("ready", r"Application startup complete"),
    ("throughput", THROUGHPUT),
    ("shutdown", r"\[shutdown\] API server: shutdown triggered|trigger received signal=SIG"),
    ("shutdown", r"Gracefully stopping http server|[Rr]eceived (?:signal )?(?:SIGTERM|SIGINT)"),
    # Raised, not named in somebody's except clause.
    (
        "shutdown",
        r"(?:^|[\])] |\r)\^?C?KeyboardInterrupt(?:: terminated)?\s*$",
    ),
    ("closing", r"INFO: +Shutting down"),
    ("ended", r"Application shutdown complete|Finished server process|MPClient: complete"),
)

# Functions of vLLM in a traceback that tell in which phase an error was raised (vllm/v1/worker/gpu_worker.py,
# gpu_model_runner.py, model_loader/; V0: vllm/worker/model_runner.py).
FRAMES: tuple[tuple[Phase, str], ...] = (
    ("cudagraph", r"\b_?(?:capture_model|capture_cudagraphs|capture_graphs?|warmup_and_capture)\b"),
    ("cudagraph", r"\bcapture_(?:begin|end)\b|torch\.cuda\.graph\(|cudagraph_capture"),
    (
        "warmup",
        r"\b(?:profile_run|_dummy_\w*run|determine_available_memory|determine_num_available_blocks)\b",
    ),
    ("warmup", r"\b(?:kernel_warmup|compile_or_warm_up_model|profile_cudagraph_memory|warm_up_model)\b"),
    (
        "warmup",
        r"\b_?(?:initialize_from_config|initialize_kv_cache\w*|allocate_kv_cache\w*|initialize_cache)\b",
    ),
    ("load", r"\b_?(?:load_model|load_weights\w*|create_weights|initialize_model|make_layers)\b"),
    ("load", r"\b(?:process_weights_after_loading|weight_loader|\w+_repack)\b|model_executor/model_loader/"),
    ("start", r"\b(?:init_device|set_device|init_worker_distributed_environment)\b"),
)

# Dumps and request lines quote whatever the user or the configuration says, and some lines say that they are
# no error or are printed at level ERROR by servers that start well: never an anchor.
NOISE = (
    r"dump_input\.py|Dumping (?:input data|scheduler)|Received request |Added request |Generated response |"
    r"retrying \d+ of \d+|Error retrieving (?:file list|safetensors)|may not be an issue|"
    r"prompt: '|\"(?:prompt|messages)\\?\":"
)
EXCEPTION = r"(?:Error|Exception|Interrupt)\b"


@dataclass
class Slot:
    """What one pattern means. ``number`` is its index in the set."""

    number: int
    pattern: str
    candidates: list[tuple[Fault, Signature]] = field(default_factory=list)
    milestones: list[str] = field(default_factory=list)
    frames: list[Phase] = field(default_factory=list)
    watched: bool = False  # somebody asks whether it is in the log at all
    noise: bool = False
    exception: bool = False

    @property
    def only_throughput(self) -> bool:
        """Whether the pattern marks the periodic line and nothing else."""
        other = self.candidates or self.frames or self.watched or self.exception
        return self.milestones == ["throughput"] and not other


class Scanner:
    """The compiled set. Immutable after construction; shared by all sessions of a catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.slots: list[Slot] = []
        self._by_pattern: dict[str, Slot] = {}
        for entry in catalogue.faults:
            for signature in entry.signatures:
                self._slot(signature.pattern).candidates.append((entry, signature))
                for pattern in (*signature.needs, *signature.unless):
                    self._slot(pattern).watched = True
            for pattern in entry.conditions.unless:
                self._slot(pattern).watched = True
        for name, pattern in MILESTONES:
            self._slot(pattern).milestones.append(name)
        for phase, pattern in FRAMES:
            self._slot(pattern).frames.append(phase)
        self._slot(NOISE).noise = True
        self._slot(EXCEPTION).exception = True
        self._set = _compiled(tuple(slot.pattern for slot in self.slots))
        self._routine = frozenset(slot.number for slot in self.slots if slot.noise or slot.only_throughput)

    def _slot(self, pattern: str) -> Slot:
        if pattern not in self._by_pattern:
            slot = Slot(len(self.slots), pattern)
            self._by_pattern[pattern] = slot
            self.slots.append(slot)
        return self._by_pattern[pattern]

    def matches(self, data: bytes) -> list[int]:
        """The numbers of the slots whose pattern is somewhere in ``data``."""
        found: list[int] = self._set.Match(data) or []
        return found

    def routine(self, numbers: list[int]) -> bool:
        """Whether these hits are what a healthy server prints all day: throughput, and quoted requests."""
        return self._routine.issuperset(numbers)

    def hits(self, data: bytes) -> Iterator[Slot]:
        """The slots themselves, in the order of the catalogue."""
        for number in sorted(self.matches(data)):
            yield self.slots[number]


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1  # any byte is a character: binary rubbish cannot end a match
    options.max_mem = 32 << 20
    return options


@lru_cache(maxsize=4)
def _compiled(patterns: tuple[str, ...]) -> re2.Set:
    compiled = re2.Set.SearchSet(_options())
    for pattern in patterns:
        # Asked about blocks of lines, ``^`` and ``$`` must still mean a line's.
        compiled.Add(b"(?m)" + pattern.encode("utf-8"))
    compiled.Compile()
    return compiled
