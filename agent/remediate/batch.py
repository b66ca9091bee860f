"""A smaller batch, worked out from the effective settings and held to vLLM's own bounds.

In: what the engine really ran with. Out: new values of max-num-seqs and max-num-batched-tokens with their
arithmetic, or the reason why no smaller batch exists. Pure numbers: which memory flags go with it is decided
in :mod:`agent.remediate.pool`.

vLLM's bounds (vllm/config/scheduler.py): max_num_batched_tokens >= max_num_seqs, and >= max_model_len without
chunked prefill; a multimodal item must fit a step whole. Ours: one sequence, 512 tokens, never above the
present value.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import EffectiveSettings, Setting
from agent.remediate.situation import Situation

SEQS_FLAG, TOKENS_FLAG = "--max-num-seqs", "--max-num-batched-tokens"
FLOOR_SEQS, FLOOR_TOKENS = 1, 512
DECODE_TOKENS_PER_SEQUENCE = 2


@dataclass(frozen=True, kw_only=True)
class Batch:
    """New flags with the lines that explain them. ``short``: ``max-num-seqs 1024 -> 512``."""

    flags: dict[str, str]
    why: tuple[str, ...]
    bounds: tuple[str, ...]
    short: str


def smaller(situation: Situation, share: float, *, seqs_at_most: int | None = None) -> Batch | str:
    """``share`` (below 1) of both limits, within bounds; a text says why nothing smaller exists.

    ``seqs_at_most`` further caps the sequences (warm-up runs with max-num-seqs dummy requests).
    """
    settings = situation.settings
    if settings.max_num_seqs is None and settings.max_num_batched_tokens is None:
        return "neither max-num-seqs nor max-num-batched-tokens is known, from no log line and no flag"
    seqs_base, tokens_base, observed = _bases(situation)
    flags: dict[str, str] = {}
    why = list(observed)
    bounds: list[str] = []
    shorts: list[str] = []
    seqs = None
    if settings.max_num_seqs is not None and seqs_base is not None:
        seqs = max(FLOOR_SEQS, int(seqs_base * share))
        seqs = seqs if seqs_at_most is None else min(seqs, max(FLOOR_SEQS, seqs_at_most))
        _note(settings.max_num_seqs, seqs, SEQS_FLAG, flags, why, shorts)
        bounds.append(f"max-num-seqs at least {FLOOR_SEQS}")
    if settings.max_num_batched_tokens is not None and tokens_base is not None:
        least, reasons = least_tokens(settings, seqs if seqs is not None else _number(settings.max_num_seqs))
        present = int(settings.max_num_batched_tokens.value)
        tokens = min(present, max(int(tokens_base * share), least))
        _note(settings.max_num_batched_tokens, tokens, TOKENS_FLAG, flags, why, shorts)
        bounds.append(f"max-num-batched-tokens at least {least}: {reasons}")
    if not flags:
        return f"the batch is at its floor ({'; '.join(bounds)})"
    return Batch(flags=flags, why=tuple(why), bounds=tuple(bounds), short=", ".join(shorts))


def least_tokens(settings: EffectiveSettings, seqs: int | None) -> tuple[int, str]:
    """The smallest allowed max-num-batched-tokens beside ``seqs`` sequences, and what sets it."""
    candidates = [(FLOOR_TOKENS, f"floor of {FLOOR_TOKENS} tokens a step")]
    if seqs is not None:
        candidates.append((seqs, f"max-num-seqs {seqs}"))
    length = _number(settings.max_model_len)
    if length is not None and not chunked(settings):
        candidates.append((length, f"max-model-len {length} without chunked prefill"))
    item = _number(settings.multimodal_item_tokens)
    if item is not None:
        candidates.append((item, f"the largest multimodal item, {item} tokens"))
    return max(candidates)


def chunked(settings: EffectiveSettings) -> bool:
    """Whether prefill is chunked. Where nothing says so, a token budget below max-model-len proves it: vLLM
    refuses to start otherwise. What cannot be proven counts as not chunked, the safe side for the bound."""
    if settings.chunked_prefill is not None:
        return str(settings.chunked_prefill.value).lower() == "true"
    tokens, length = _number(settings.max_num_batched_tokens), _number(settings.max_model_len)
    return tokens is not None and length is not None and tokens < length


def _bases(situation: Situation) -> tuple[int | None, int | None, tuple[str, ...]]:
    """What to divide: the limits, or the step that died where the engine's own dump tells its size.

    A limit of 1,024 sequences halved is no change for a step that died with 64. A step of few tokens for each
    sequence was decoding, so its sequences are what was too many; otherwise it was prefill, so its tokens
    are.
    """
    seqs, tokens = (
        _number(situation.settings.max_num_seqs),
        _number(situation.settings.max_num_batched_tokens),
    )
    running, scheduled = _number(situation.running_requests), _number(situation.scheduled_tokens)
    if not running or not scheduled:
        return seqs, tokens, ()
    seen = f"the step that died had {running} requests and {scheduled} tokens (the engine's own dump)"
    if scheduled <= DECODE_TOKENS_PER_SEQUENCE * running:
        return (min(seqs, running) if seqs is not None else None), tokens, (seen,)
    return seqs, (min(tokens, scheduled) if tokens is not None else None), (seen,)


def _note(setting: Setting, new: int, flag: str, flags: dict[str, str], why: list[str], shorts: list[str]) -> None:
    """Record a value when it is really lower."""
    present = int(setting.value)
    if new >= present:
        return
    name = flag.removeprefix("--")
    flags[flag] = str(new)
    why.append(f"{name} {present} ({setting.source}) -> {new}, {new / present:.3g} of it")
    shorts.append(f"{name} {present} -> {new}")


def _number(setting: Setting | None) -> int | None:
    return int(setting.value) if setting is not None else None
