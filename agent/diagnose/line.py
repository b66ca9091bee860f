"""One line of a log: what wraps it, which process said it, how loudly, when, and the words themselves.

vLLM lines arrive in many coats: docker compose, kubectl, CRI, docker's and vLLM's own JSON, journald, Ray,
terminal borders, colours, progress bars that return the carriage. Signatures are searched without anchors
and so need no coat taken off; this module is for the lines that hit. Never raises: what cannot be parsed
has level ``none`` and no process.
"""

from __future__ import annotations

import json
import re

import msgspec

from agent.diagnose.catalogue import Level

WORKER, ENGINE, API, UNKNOWN = 3, 2, 1, 0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """``depth``: worker 3 > engine 2 > API server 1 > unknown 0. ``time``: sortable text, None if not
    stated."""

    text: str
    level: Level = "none"
    process: str = ""
    pid: int | None = None
    depth: int = UNKNOWN
    time: str | None = None


_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[@-_]")
_WRAPPER = re.compile(
    r"\s*(?:"
    r"[│┃|]\s"
    r"|[\w.-]{1,64}\s*\|\s"
    r"|\[pod/[^\]]+\]\s"
    r"|(?:INFO|ERROR|WARNING|DEFAULT|NOTICE|DEBUG|CRITICAL)\s+\d{4}-\d\d-\d\dT\S+\s+(?:\[resource[^\]]*\]\s)?"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\]?\s+(?:(?:stdout|stderr)\s+[FP]\s)?"
    r"|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\S+\s[\w.@/-]+(?:\[\d+\])?:\s"
    r"|ERROR:\s+(?=\()"
    r"|>\s"
    r"|\[(?:Info|Warning|Error|Debug)\]\s(?:\(Process\)\s)?"
    r")"
)
_PROCESS = re.compile(
    r"\((?P<name>(?:APIServer|ApiServer|(?:DP)?EngineCore|Worker|VllmWorker|RayWorker|RayDistributed|DPCoordinator|raylet)"
    r"[\w.-]*|[A-Z]\w*(?=[^()]{0,40}\bpid=\d))(?P<rest>[^()]{0,120})\)\s?"
)
_RANK = re.compile(r"\[rank(\d+)\]:\s?")
_VLLM = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?:\d{4}-)?\d\d-\d\d(?: \d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?\s+"
    r"(?:\\?\[[^\]]{1,80}\]|[\w./]+:\d+\])\s?"
)
_LOOSE = re.compile(
    r"(?:^|[\s-])(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?::\s|\s-\s|\s+\[[\w./]+(?::\d+)?\]\s|\s(?=\w+:\s))"
)
_GLOG = re.compile(r"(?:^|\s|:)\[?([IWEF])(?:\d{4} \d\d:\d\d:\d\d| \w+\.cpp:)")
_NCCL = re.compile(r"\bNCCL (INFO|WARN) ")
_PYWARN = re.compile(r":\d+: \w*Warning: |^\w*Warning: ")
_PID = re.compile(r"pid=(\d+)")
_TIMES = (
    re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d:\d\d:\d\d)"),
    re.compile(r"\b()(\d\d)-(\d\d) (\d\d:\d\d:\d\d)"),
)
_LEVELS: dict[str, Level] = {
    "DEBUG": "debug", "INFO": "info", "WARNING": "warning", "WARN": "warning", "ERROR": "error",
    "CRITICAL": "error", "FATAL": "error", "I": "info", "W": "warning", "E": "error", "F": "error",
}  # fmt: skip
_HEAD = 400


def strip_controls(raw: bytes) -> bytes:
    """Without colours and NUL bytes; cheap where there are none."""
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    return raw.replace(b"\0", b"") if b"\0" in raw else raw


def unwrap(raw: bytes) -> list[str]:
    """The logical lines of a physical one: carriage returns split it, a JSON record gives its message."""
    text = raw.decode("utf-8", "replace").rstrip("\r")
    if text.startswith("{") and (inner := _from_json(text)) is not None:
        return [part for line in inner.split("\n") for part in line.split("\r") if part.strip()]
    return [part for part in text.split("\r") if part.strip()] if "\r" in text else [text]


def _from_json(text: str) -> str | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    body = next(
        (record[key] for key in ("log", "message", "msg", "MESSAGE") if isinstance(record.get(key), str)),
        None,
    )
    if body is None:
        return None
    level = next((record[key] for key in ("levelname", "level", "severity") if isinstance(record.get(key), str)), None)
    head = f"{level.upper()}: " if level and "log" not in record and level.upper() in _LEVELS else ""
    trace = record.get("exc_info") or record.get("exc_text")
    tail = f"\n{trace}" if isinstance(trace, str) else ""
    return "\n".join(head + line for line in (body + tail).split("\n"))


def parse(text: str) -> Line:
    """Take the coats off and name process, level and time."""
    head = text[:_HEAD]
    time = _time(head)
    position = 0
    while (coat := _WRAPPER.match(text, position)) and coat.end() > position:
        position = coat.end()
    process, pid, depth, position = _process(text, position)
    level, position = _level(text, position)
    if not process:
        # JSON records and loose formats say the level before the process.
        process, pid, depth, position = _process(text, position)
        if process and level != "none":
            inner, position = _level(text, position)
            level = inner if inner != "none" else level
    body = text[position:].rstrip().rstrip("│┃").rstrip()
    return Line(text=body, level=level, process=process, pid=pid, depth=depth, time=time)


def _process(text: str, position: int) -> tuple[str, int | None, int, int]:
    """Process name, pid, depth and where the words go on. Two prefixes on a line: the last one speaks."""
    name, pid, depth = "", None, UNKNOWN
    while match := _PROCESS.match(text, position) or _RANK.match(text, position):
        position = match.end()
        if match.re is _RANK:
            if not name:
                name, depth = f"rank{match.group(1)}", WORKER
            continue
        name = match.group("name")
        found = _PID.search(match.group("rest"))
        pid = int(found.group(1)) if found else None
        rank = re.search(r"rank=(\d+)|\b((?:TP|DP|PP|EP)\d+)\b", match.group("rest"))
        name = f"{name}_{rank.group(1) or rank.group(2)}" if rank else name
        depth = _depth(name)
    return name, pid, depth, position


def _depth(name: str) -> int:
    if name.startswith(("EngineCore", "DPEngineCore")):
        return ENGINE
    if name.startswith(("API", "Api", "DPCo")):
        return API
    # Any other actor of Ray may hold a whole server: its own lines say nothing about depth.
    return WORKER if "Worker" in name else UNKNOWN


def _level(text: str, position: int) -> tuple[Level, int]:
    head = text[position : position + _HEAD]
    if match := _VLLM.match(head) or _VLLM.search(head[:160]):
        return _LEVELS[match.group(1)], position + match.end()
    if match := _LOOSE.search(head[:120]):
        return _LEVELS[match.group(1)], position + match.end()
    if match := _GLOG.search(head[:80]):
        return _LEVELS[match.group(1)], position
    if match := _NCCL.search(head[:160]):
        return _LEVELS[match.group(1)], position
    return ("warning" if _PYWARN.search(head) else "none"), position


def _time(head: str) -> str | None:
    """``MM-DD HH:MM:SS``; the year is left out, since vLLM's own lines have none."""
    for pattern in reversed(_TIMES):
        if match := pattern.search(head):
            return f"{match.group(2)}-{match.group(3)} {match.group(4)}"
    return None
