"""Values that vLLM's configuration classes refuse, and the defaults that they fill in.

In come the flags; out go effective values, or `ValueFailure` with the text that pydantic prints (vLLM exits
1 then, not 2). Defaults are those of vLLM 0.32 for an API server (engine/arg_utils.py, `get_batch_defaults`).
"""

from __future__ import annotations

from agent.sim.flags import Flags, typed
from agent.sim.memory import GIB


class ValueFailure(Exception):
    """pydantic would refuse the value: traceback, exit 1."""


def lengths(flags: Flags, model_max: int) -> tuple[int, int]:
    """(effective, first given) context length; raises for one above the model's own."""
    given = [values[0] for name, values in flags.found if name == "--max-model-len" and values]
    if not given or given[-1] in ("auto", "-1"):
        return model_max, model_max
    length = flags.integer("--max-model-len", model_max)
    if length < 1:
        raise ValueFailure(_pydantic("ModelConfig", "max_model_len", "greater than or equal to 1", length))
    if length > model_max:
        raise ValueFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({length}) is greater than the derived "
            "max_model_len "
            f"(max_position_embeddings={float(model_max)} or model_max_length=None in model's config.json). "
            "To allow "
            "overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. [type=value_error, "
            "input_value=ArgsKwargs(), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
        )
    first = typed(given[0])
    return length, first if isinstance(first, int) and first > 0 else length


def batch(flags: Flags, total: int, max_len: int) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) with the defaults of vLLM's `get_batch_defaults` for an API
    server.
    """
    big = total >= 70 * GIB
    default_tokens = 16384 if total >= 160 * GIB else 8192 if big else 2048
    seqs = flags.maybe_integer("--max-num-seqs")
    batched = flags.maybe_integer("--max-num-batched-tokens")
    if batched is None:
        batched = default_tokens if seqs is None else min(default_tokens, seqs * max_len)
    if seqs is None:
        seqs = min(1024 if big else 256, max(1, batched))
    bad = [(n, v) for n, v in (("max_num_batched_tokens", batched), ("max_num_seqs", seqs)) if v < 1]
    if bad:
        raise ValueFailure(_pydantic_many("SchedulerConfig", [(n, "greater than or equal to 1", v) for n, v in bad]))
    if batched < seqs:
        raise ValueFailure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
            f"  Value error, max_num_batched_tokens ({batched}) must be greater than or equal to "
            f"max_num_seqs ({seqs}). "
            "[type=value_error, input_value=ArgsKwargs(), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
        )
    return seqs, batched


def utilisation(flags: Flags) -> float:
    """--gpu-memory-utilization, or `ValueFailure` for one outside 0 to 1."""
    value = flags.number("--gpu-memory-utilization", float, 0.92)
    share = 0.92 if value is None else value
    if not 0 < share <= 1:
        rule = "less than or equal to 1" if share > 1 else "greater than 0"
        raise ValueFailure(_pydantic("CacheConfig", "gpu_memory_utilization", rule, share))
    return share


def _pydantic(config: str, name: str, rule: str, value: float) -> str:
    return _pydantic_many(config, [(name, rule, value)])


def _pydantic_many(config: str, bad: list[tuple[str, str, float]]) -> str:
    """pydantic's text for values out of bounds."""
    lines = [
        f"pydantic_core._pydantic_core.ValidationError: {len(bad)} validation error"
        f"{'s' if len(bad) > 1 else ''} for {config}"
    ]
    for name, rule, value in bad:
        kind = rule.rsplit(" ", 1)[0].replace(" or equal to", "_equal").replace(" than", "_than")
        kind = {"greater_than_equal": "greater_than_equal", "less_than_equal": "less_than_equal"}.get(kind, kind)
        kind = kind.replace(" ", "_")
        lines += [
            name,
            f"  Input should be {rule} [type={kind}, input_value={value}, input_type={type(value).__name__}]",
            f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}",
        ]
    return "\n".join(lines)
