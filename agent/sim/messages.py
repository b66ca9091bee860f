"""What the two processes say to each other: the shapes of the JSON documents on their channel.

Pure types, no behaviour. Every document is one of these with some of its keys; a reader looks at the keys
that are there. Ids are counted by the API server, lengths are in tokens.
"""

from __future__ import annotations

from typing import TypedDict


class Add(TypedDict):
    """A new sequence; ``hashes`` are those of the prompt's full blocks, each over all blocks before it."""

    id: int
    name: str
    prompt: int
    max_tokens: int
    hashes: list[int]


class ToEngine(TypedDict, total=False):
    """``faults`` replaces the whole set, as (name, argument)."""

    add: Add
    abort: list[int]
    faults: list[tuple[str, str]]


class Ready(TypedDict):
    """The KV pool of an engine that has started."""

    blocks: int
    tokens: int
    concurrency: float


class Gauges(TypedDict):
    """The scheduler after a step, and what the step moved (tokens of prompts computed, taken from the cache,
    …).
    """

    running: int
    waiting: int
    usage: float
    prompt: int
    cached: int
    queried: int
    preempted: int


class FromEngine(TypedDict, total=False):
    """A step's outcome (``new``, ``done``, ``started``, ``gauges``), or the start, or the announced end.

    ``done`` holds (id, finish reason, preemptions, prompt tokens from the cache).
    """

    ready: Ready
    dead: bool
    new: list[int]
    done: list[tuple[int, str, int, int]]
    started: list[int]
    gauges: Gauges
