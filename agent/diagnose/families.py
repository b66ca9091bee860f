"""The smaller families: numbers of the KV cache, the card's occupancy, assembler, port and process lines.

Texts in, a :class:`Reading` out. One function a family; GPU memory has its own module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from agent.diagnose.reading import SIZE, Reading, first_size, size
from agent.model import (
    AssemblerFacts,
    CacheFacts,
    Context,
    OccupancyFacts,
    PortFacts,
    ProcessFacts,
)

_GIB = 1 << 30
_BLOCK_TOKENS = 16


def _number(pattern: str, texts: Sequence[str]) -> float | None:
    for text in texts:
        if found := re.search(pattern, text):
            return float(found.group(1).replace(",", ""))
    return None


def _size(pattern: str, texts: Sequence[str]) -> int | None:
    return next((value for text in texts if (value := first_size(pattern, text)) is not None), None)


def read_cache(texts: Sequence[str]) -> Reading:
    """vllm/v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory; V0: worker.py
    raise_if_cache_size_invalid."""
    length = _number(r"max seq len \((\d+)\)", texts)
    estimate = _number(r"estimated maximum model length is (\d+)", texts)
    capacity = _number(r"stored in KV cache \((\d+)\)", texts)
    if estimate is None and capacity is not None:
        # V0 states the tokens that fit instead; a request needs whole blocks.
        estimate = capacity // _BLOCK_TOKENS * _BLOCK_TOKENS
    facts = CacheFacts(
        max_model_len=int(length) if length is not None else None,
        needed_bytes=_size(rf"\({SIZE} KV cache is needed", texts),
        available_bytes=_size(rf"available KV cache memory \({SIZE}\)", texts),
        estimated_max_model_len=int(estimate) if estimate else None,
    )
    words = {
        name: text
        for name, text in (
            ("max_model_len", str(facts.max_model_len) if facts.max_model_len else None),
            ("needed", size(facts.needed_bytes) if facts.needed_bytes is not None else None),
            ("available", size(facts.available_bytes) if facts.available_bytes is not None else None),
            (
                "estimated_max_model_len",
                str(facts.estimated_max_model_len) if facts.estimated_max_model_len else None,
            ),
            ("token_capacity", str(int(capacity)) if capacity is not None else None),
        )
        if text is not None
    }
    return Reading(facts=facts, words=words)


_OCCUPIED = re.compile(
    r"Free memory on device (?P<device>\S*) ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*?"
    r"(?:utilization|desired[^(]*) \((?P<share>[\d.]+), (?P<desired>[\d.]+) GiB\)"
)


def read_occupancy(texts: Sequence[str]) -> Reading:
    """vllm/v1/worker/utils.py: request_memory."""
    found = next((m for text in texts if (m := _OCCUPIED.search(text))), None)
    if found is None:
        return Reading(facts=OccupancyFacts())
    free, total, desired = (round(float(found.group(n)) * _GIB) for n in ("free", "total", "desired"))
    share = float(found.group("share"))
    facts = OccupancyFacts(
        device=found.group("device") or None,
        free_bytes=free,
        total_bytes=total,
        utilization=share,
        requested_bytes=desired,
    )
    words = {
        "device": facts.device or "the device",
        "free": size(free),
        "total": size(total),
        "utilization": f"{share:g}",
        "desired": size(desired),
        "missing": size(max(0, desired - free)),
    }
    fitting = math.floor((free / total - 0.01) * 100) / 100 if total else 0.0
    if 0.05 <= fitting < share:
        words["fitting_utilization"] = f"{fitting:.2f}"
    return Reading(facts=facts, words=words)


def read_assembler(texts: Sequence[str]) -> Reading:
    """triton/backends/nvidia/compiler.py: the assembler's stderr and the command to repeat it."""
    arch = next((m for t in texts if (m := re.search(r"(?:Value '|gpu-name[= ])(sm_\w+)", t))), None)
    path = next((m for t in texts if (m := re.search(r"Repro command: (\S+ptxas\S*)|'(\S+/ptxas[\w-]*)'", t))), None)
    facts = AssemblerFacts(
        arch=arch.group(1) if arch else None, path=(path.group(1) or path.group(2)) if path else None
    )
    words = {k: v for k, v in (("arch", facts.arch), ("path", facts.path)) if v}
    return Reading(facts=facts, words=words)


_ADDRESS = re.compile(r"\('([^']*)', (\d+)\)|tcp://([\w.\[\]:*]+?):(\d+)|[Pp]ort:? (\d+)|\[::\]:(\d+)")


def read_port(texts: Sequence[str], context: Context) -> Reading:
    """The address in the line, else the ``--port`` of the command."""
    host: str | None = None
    port: int | None = None
    for text in texts:
        if found := _ADDRESS.search(text):
            host = found.group(1) or found.group(3)
            port = int(next(g for g in (found.group(2), found.group(4), found.group(5), found.group(6)) if g))
            break
    if port is None:
        port = _argument_port(texts, context)
    words = {} if port is None else {"port": str(port), "address": f"{host}:{port}" if host else f"port {port}"}
    return Reading(facts=PortFacts(host=host, port=port), words=words)


def _argument_port(texts: Sequence[str], context: Context) -> int | None:
    for text in texts:
        if found := re.search(r"'port': (\d+)", text):
            return int(found.group(1))
    for index, argument in enumerate(context.argv):
        value = argument.partition("=")[2] if argument.startswith("--port=") else None
        if argument == "--port" and index + 1 < len(context.argv):
            value = context.argv[index + 1]
        if value and value.isdecimal():
            return int(value)
    return None


_DIED = (
    re.compile(r"(?:Worker proc|Engine core proc(?:ess)?|Worker) (?P<name>[\w-]+)[^.]*?died"),
    re.compile(r"Killed process \d+ \((?P<name>[^)]+)\)"),
    re.compile(r"RPC call to (?P<name>\w+) timed out"),
)
_CODE = re.compile(r"exit ?code:? *:? *(-?\d+)|died, exit code: (-?\d+)|exitcode *: *(-?\d+)", re.IGNORECASE)
_SIGNALS = {
    "SIGSEGV": 11,
    "Segmentation fault": 11,
    "SIGKILL": 9,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGILL": 4,
    "SIGFPE": 8,
}


def read_process(texts: Sequence[str], context: Context) -> Reading:
    """Which process ended how, from the log and from the exit record."""
    name = next((m.group("name") for t in texts for p in _DIED if (m := p.search(t))), None)
    code = next((int(next(g for g in m.groups() if g)) for t in texts if (m := _CODE.search(t))), None)
    signal = -code if code is not None and code < 0 else code - 128 if code is not None and 128 < code < 160 else None
    if signal is None:
        signal = next((number for t in texts for word, number in _SIGNALS.items() if word in t), None)
    record = context.exit
    if code is None and signal is None and record is not None:
        code, signal = record.code, record.signal
    words = {
        key: value
        for key, value in (
            ("process", name),
            ("exit_code", None if code is None else str(code)),
            ("signal", None if signal is None else str(signal)),
            ("oom_kills", str(record.oom_kill_delta) if record and record.oom_kill_delta else None),
        )
        if value is not None
    }
    return Reading(facts=ProcessFacts(process=name, exit_code=code, signal=signal), words=words)
