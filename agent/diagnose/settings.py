"""What the engine really runs with, and which line says so.

The log is asked first (it states what is in force), then the command line, then vLLM's defaults where they
are known. None stays None: a value that nobody stated is not guessed. Defaults: vllm/config/cache.py and
vllm/engine/arg_utils.py (get_batch_defaults) of 0.32.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import PurePath

from agent.diagnose.start import Start
from agent.model import Context, EffectiveSettings, Setting

Value = int | float | bool | str
_GIB = 1 << 30
_NAMES: dict[str, str] = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_pool_bytes": "kv_cache_memory_bytes",
    "chunked_prefill": "enable_chunked_prefill",
    "enforce_eager": "enforce_eager",
    "tensor_parallel_size": "tensor_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "nnodes": "nnodes",
    "kv_connector": "kv_transfer_config",
    "model": "model",
}
_SHORT = {"-tp": "tensor_parallel_size", "-dp": "data_parallel_size", "-n": "nnodes"}
_SWITCHES = frozenset(("enforce_eager", "enable_chunked_prefill"))
# Engine configuration line: setting -> pattern.
_ENGINE = {
    "max_model_len": r"\bmax_seq_len=(\d+)",
    "tensor_parallel_size": r"\btensor_parallel_size=(\d+)",
    "data_parallel_size": r"\bdata_parallel_size=(\d+)",
    "enforce_eager": r"\benforce_eager=(True|False)",
    "chunked_prefill": r"\b(?:chunked_prefill_enabled|enable_chunked_prefill)=(True|False)",
    "model": r"\bmodel='([^']+)'",
}

# Milestone, setting, pattern: first what is stated in GiB (the weights' line says GB in old versions and means GiB).
_SIZES = (
    ("pool", "kv_pool_bytes", r"memory: *(-?\d+(?:\.\d+)?) GiB|set \((\d+(?:\.\d+)?)/"),
    ("loaded", "weights_bytes", r"took *(\d+(?:\.\d+)?) *Gi?B"),
)
_COUNTS = (
    ("batched-tokens", "max_num_batched_tokens", r"max_num_batched_tokens=(\d+)"),
    ("pool-size", "kv_pool_tokens", r"KV cache size: *(\d[\d,]*) tokens"),
    ("model-length", "max_model_len", r"max model len (\d+)"),
)


def effective_settings(start: Start, context: Context) -> EffectiveSettings:
    """All settings that the log, the command or a known default state."""
    found: dict[str, Setting] = {}
    _from_lines(start, found)
    _from_arguments(start, found)
    _from_command(context, found)
    version = _version(start, context)
    _from_defaults(found, version, context)
    return EffectiveSettings(vllm_version=version, **found)


def _version(start: Start, context: Context) -> str | None:
    for name in ("engine", "banner"):
        if name in start.settings and (
            match := re.search(r"\(v([\w.+-]+)\)|version v?(\d[\w.+-]*)", start.settings[name][0])
        ):
            return match.group(1) or match.group(2)
    return context.vllm_version


def _put(found: dict[str, Setting], name: str, value: Value | None, source: str) -> None:
    if value is not None and name not in found:
        found[name] = Setting(value=value, source=source)


def _from_lines(start: Start, found: dict[str, Setting]) -> None:
    lines = start.settings
    if "batched-tokens" in lines:
        _put(found, "chunked_prefill", True, lines["batched-tokens"][1])
    if "engine" in lines:
        text, where = lines["engine"]
        for name, pattern in _ENGINE.items():
            if match := re.search(pattern, text):
                _put(found, name, _value(match.group(1)), where)
    for line, name, pattern in (*_SIZES, *_COUNTS):
        text, where = lines.get(line, ("", ""))
        if match := re.search(pattern, text):
            number = next(group for group in match.groups() if group is not None).replace(",", "")
            value = round(float(number) * _GIB) if (line, name, pattern) in _SIZES else int(number)
            _put(found, name, value, where)


def _from_arguments(start: Start, found: dict[str, Setting]) -> None:
    if "arguments" not in start.settings:
        return
    text, where = start.settings["arguments"]
    arguments = _mapping(text)
    for name, flag in _NAMES.items():
        _put(found, name, _scalar(name, arguments.get(flag)), where)


def _mapping(text: str) -> Mapping[str, object]:
    """The dict of "non-default args", or the Namespace of older versions; what cannot be read whole is read
    by key."""
    begin = text.find("{")
    if begin >= 0:
        try:
            value = ast.literal_eval(text[begin : text.rfind("}") + 1])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    pairs = re.findall(r"['\"]?(\w+)['\"]?\s*[:=]\s*('[^']*'|-?[\d.]+(?:e-?\d+)?|True|False)", text)
    return {key: _value(value.strip("'")) for key, value in pairs}


def _from_command(context: Context, found: dict[str, Setting]) -> None:
    last: dict[str, str] = {}  # a repeated flag: the last one wins
    argv = context.argv
    for index, argument in enumerate(argv):
        if not argument.startswith("-"):
            continue
        flag, _, value = argument.partition("=")
        name = _SHORT.get(flag, flag.lstrip("-").replace("-", "_"))
        if not value:
            following = argv[index + 1] if index + 1 < len(argv) else ""
            value = "True" if not following or following.startswith("--") or name in _SWITCHES else following
        last[name] = value
    for name, flag in _NAMES.items():
        if flag in last:
            _put(found, name, _scalar(name, _value(last[flag])), "argv")


def _from_defaults(found: dict[str, Setting], version: str | None, context: Context) -> None:
    if version is None or not (match := re.match(r"0\.(\d+)", version)):
        return
    source = f"default of vLLM {version}"
    minor = int(match.group(1))
    _put(found, "gpu_memory_utilization", 0.92 if minor >= 32 else 0.9 if minor <= 25 else None, source)
    for name in ("tensor_parallel_size", "data_parallel_size", "nnodes"):
        _put(found, name, 1, source)
    _put(found, "enforce_eager", False, source)
    totals = [card.total_bytes for card in context.gpus or () if card.total_bytes]
    if minor >= 8 and totals:
        large = min(totals) >= 70 * _GIB and not any("a100" in card.name.lower() for card in context.gpus or ())
        seqs: int = 1024 if large else 256
        tokens = found.get("max_num_batched_tokens")
        if tokens and isinstance(tokens.value, int):
            seqs = min(seqs, tokens.value)
        _put(found, "max_num_seqs", seqs, f"{source} for this card")


def _scalar(name: str, value: object) -> Value | None:
    if name == "kv_connector":
        return _connector(value)
    if isinstance(value, str) and name == "model":
        return value if "://" in value else str(PurePath(value))
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and name not in ("model",):
        return _value(value)
    return None


def _connector(value: object) -> str | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            match = re.search(r"kv_connector['\"]?\s*[:=]\s*['\"]?(\w+)", str(value))
            return match.group(1) if match else None
    if isinstance(value, dict):
        name = value.get("kv_connector")
        return name if isinstance(name, str) else "unnamed"
    return None


def _value(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _human(text)


def _human(text: str) -> Value:
    """``32k``, ``2.5G``: vLLM's human-readable numbers (lower case: powers of ten, upper case: of two)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text)
    if not match:
        return text
    power = "kmgt".index(match.group(2).lower()) + 1
    base = 1000 if match.group(2).islower() else 1024
    return round(float(match.group(1)) * float(base**power))
