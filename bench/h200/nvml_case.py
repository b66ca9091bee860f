"""The cards' figures on a real driver: against nvidia-smi, what each field costs, and what watching them costs.

In: a server that serves, with the agent around it. Out, in the record: pairs of figures at rest and under load with
their tolerances, milliseconds of each field's call, of the launcher's probe from end to end, processor time of watcher,
launcher and driver process over a minute each, and one real Xid.

A figure moves between two looks, so each is taken between two of nvidia-smi and must lie within both and a tolerance,
in most of the rounds. The Xid is provoked as programs provoke it: a process of its own writes through a wild pointer;
the driver ends that process and no other.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.launch import Cards, start_here
from tests.support.figures import spread
from tests.support.load import Shape, run_burst
from tests.support.supervised import Json, Supervised, fetch

ROUNDS = 5
AGREEING = 3
MIB = float(1 << 20)
LOAD = Shape(requests=64, concurrency=64, max_tokens=256, model="m", prompt_tokens=300, timeout_seconds=120)
LOAD_SECONDS = 8.0
COST_REPEATS = 200
PROBES = 50
CPU_SECONDS = 60.0
REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}  # fmt: skip
WILD = """
import torch, triton, triton.language as tl
@triton.jit
def write(pointer, offset):
    tl.store(pointer + offset, 1)
target = torch.zeros(1, dtype=torch.int32, device="cuda")
write[(1,)](target, 1 << 42)
torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class Field:
    """A figure of both: ``factor`` makes nvidia-smi's unit the agent's; tolerances in the agent's unit."""

    sample: str
    smi: str
    factor: float
    still: float
    moving: float


FIELDS = (
    Field("gpu_memory_total_bytes", "memory.total", MIB, MIB, MIB),
    Field("gpu_memory_used_bytes", "memory.used", MIB, MIB, 512 * MIB),
    Field("gpu_memory_free_bytes", "memory.free", MIB, MIB, 512 * MIB),
    Field("gpu_memory_reserved_bytes", "memory.reserved", MIB, MIB, MIB),
    Field("gpu_utilization_ratio", "utilization.gpu", 0.01, 0.02, 0.3),
    Field("gpu_memory_utilization_ratio", "utilization.memory", 0.01, 0.02, 0.3),
    Field("gpu_power_watts", "power.draw", 1, 5, 60),
    Field("gpu_power_limit_watts", "enforced.power.limit", 1, 0.1, 0.1),
    Field("gpu_temperature_celsius", "temperature.gpu", 1, 1, 3),
    Field("gpu_memory_temperature_celsius", "temperature.memory", 1, 1, 3),
    Field("gpu_clock_hertz sm", "clocks.sm", 1e6, 15e6, 60e6),
    Field("gpu_clock_hertz memory", "clocks.mem", 1e6, 1e6, 1e6),
    Field("gpu_ecc_errors_total corrected", "ecc.errors.corrected.volatile.total", 1, 0, 0),
    Field("gpu_ecc_errors_total uncorrected", "ecc.errors.uncorrected.volatile.total", 1, 0, 0),
)
EVENTS = "clocks_event_reasons.active"
ROWS = (
    Field("gpu_remapped_rows correctable", "remapped_rows.correctable", 1, 0, 0),
    Field("gpu_remapped_rows uncorrectable", "remapped_rows.uncorrectable", 1, 0, 0),
    Field("gpu_remap_pending", "remapped_rows.pending", 1, 0, 0),
    Field("gpu_remap_failed", "remapped_rows.failure", 1, 0, 0),
)


class Account(Protocol):
    """What the case writes to."""

    facts: dict[str, Any]

    def say(self, text: str) -> None: ...

    def expect(self, holds: bool, text: str) -> None: ...


def smi(query: str, names: Sequence[str]) -> dict[str, str]:
    """The first card's cells by name; a name that this nvidia-smi does not know is left out."""
    wanted = list(names)
    while wanted:
        argv = ["nvidia-smi", f"--{query}={','.join(wanted)}", "--format=csv,noheader,nounits"]
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        if answer.returncode == 0:
            cells = answer.stdout.strip().splitlines()[0].split(",") if answer.stdout.strip() else []
            return dict(zip(wanted, (cell.strip() for cell in cells), strict=False))
        unknown = [name for name in wanted if f'"{name}"' in answer.stdout + answer.stderr]
        if not unknown:
            return {}
        wanted = [name for name in wanted if name not in unknown]
    return {}


def number(cell: str | None) -> float | None:
    """None where nvidia-smi has no number."""
    if cell in ("Yes", "No"):
        return float(cell == "Yes")
    try:
        return float(cell or "")
    except ValueError:
        return None


def probe(agent: Supervised, *, costly: bool) -> Json:
    """The launcher's answer; raises where it refuses."""
    result: Json = agent.verb("probe", name="gpu", costly=costly)["result"]
    return result


def figures(answer: Json, card: int = 0) -> dict[str, float]:
    """Of one card, by name and the one label that tells series apart."""
    if not answer["cards"]:
        return {}
    rows = answer["cards"][card]["samples"]
    return {" ".join([name, *labels.values()]): float(value) for name, labels, value in rows}


def compare(account: Account, agent: Supervised, name: str, *, moving: bool) -> None:
    """Interleave both some times; each field must agree in most rounds."""
    rounds = []
    for _ in range(ROUNDS):
        before = smi("query-gpu", [*(field.smi for field in FIELDS), EVENTS])
        answer = probe(agent, costly=True)
        after = smi("query-gpu", [*(field.smi for field in FIELDS), EVENTS])
        rounds.append((before, figures(answer), after))
        time.sleep(0.3)
    rows = smi("query-remapped-rows", [field.smi for field in ROWS])
    table = [_row(field, rounds, moving) for field in FIELDS]
    table += [_row(field, [(rows, seen, rows) for _, seen, _ in rounds], moving) for field in ROWS]
    table.append(_events(rounds))
    account.facts.setdefault("against_nvidia_smi", {})[name] = table
    for row in table:
        account.expect(row["agree"] is not False, f"{name}: {row['field']} differs from nvidia-smi: {row['pairs']}")
    told = sum(row["agree"] is True for row in table)
    account.say(f"{name}: {told} of {len(table)} fields agree with nvidia-smi, the others it does not tell")


def _row(field: Field, rounds: Sequence[tuple[Mapping[str, str], Mapping[str, float], Mapping[str, str]]],
         moving: bool) -> Json:  # fmt: skip
    tolerance = field.moving if moving else field.still
    pairs, good = [], 0
    for before, seen, after in rounds:
        around = [value * field.factor for value in map(number, (before.get(field.smi), after.get(field.smi)))
                  if value is not None]  # fmt: skip
        own = seen.get(field.sample)
        pairs.append({"nvidia_smi": around, "agent": own})
        if around and own is not None:
            good += min(around) - tolerance <= own <= max(around) + tolerance
    told = any(pair["nvidia_smi"] for pair in pairs)  # where nvidia-smi has no such figure there is nothing to compare
    agree = good >= AGREEING if told else None
    return {"field": field.sample, "nvidia_smi": field.smi, "tolerance": tolerance, "agree": agree, "pairs": pairs}


def _events(rounds: Sequence[tuple[Mapping[str, str], Mapping[str, float], Mapping[str, str]]]) -> Json:
    pairs, good = [], 0
    for before, seen, after in rounds:
        around = [_reasons(cells[EVENTS]) for cells in (before, after) if cells.get(EVENTS, "").startswith("0x")]
        own = sorted(name.split()[1] for name, value in seen.items() if name.startswith("gpu_clock_event ") and value)
        pairs.append({"nvidia_smi": around, "agent": own})
        good += own in around
    told = any(pair["nvidia_smi"] for pair in pairs)
    return {"field": "gpu_clock_event", "nvidia_smi": EVENTS, "agree": good >= AGREEING if told else None,
            "pairs": pairs}  # fmt: skip


def _reasons(cell: str) -> list[str]:
    bits = int(cell, 16)
    return sorted(name for bit, name in REASONS.items() if bits & bit)


@contextmanager
def busy(agent: Supervised) -> Iterator[None]:
    """Bursts one after another for as long as the block runs."""
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            run_burst(agent.url, LOAD)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        time.sleep(LOAD_SECONDS)
        yield
    finally:
        stop.set()
        thread.join(150)


def field_costs(python: str, environment: Mapping[str, str]) -> Json:
    """Milliseconds of each field's call, in a driver process as the agent starts it."""

    async def ask() -> Json:
        cards = Cards(start_here, lambda: [python], lambda: {**os.environ, **environment})
        try:
            for _ in range(100):
                if (await cards.read(costly=True, own=None))["measured"]:
                    break
                await asyncio.sleep(0.2)
            return dict(await cards.costs(COST_REPEATS, 60.0))
        finally:
            cards.close()

    return asyncio.run(ask())


def probe_costs(agent: Supervised) -> Json:
    """Milliseconds of the launcher's probe, from a client's call to its answer."""
    found = {}
    for name, costly in (("cheap", False), ("costly", True)):
        took = []
        for _ in range(PROBES):
            begun = time.perf_counter()
            probe(agent, costly=costly)
            took.append((time.perf_counter() - begun) * 1e3)
        found[name] = spread(took)
    return found


def driver_process(launcher: int) -> int | None:
    """The driver's process under the launcher."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == launcher and b"driver.main()" in (folder / "cmdline").read_bytes():
                    return int(folder.name)
            except (OSError, ValueError):
                continue
    return None


def spent(pid: int) -> float:
    """Processor seconds of one process."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor(agent: Supervised, seconds: float) -> Json:
    """Percent of a core of each of the agent's processes over ``seconds``, left alone."""
    watcher = agent.watcher_process()
    pids = {"launcher": agent.pid, "watcher": watcher.pid if watcher else None, "driver": driver_process(agent.pid)}
    known = {name: pid for name, pid in pids.items() if pid is not None}
    begun, before = time.monotonic(), {name: spent(pid) for name, pid in known.items()}
    time.sleep(seconds)
    took = time.monotonic() - begun
    percent = {name: round(100 * (spent(pid) - before[name]) / took, 3) for name, pid in known.items()}
    memory = {name: resident(pid) for name, pid in known.items()}
    return {"seconds": round(took, 1), "percent_of_a_core": percent, "resident_mib": memory}


def resident(pid: int) -> float:
    """MiB."""
    pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 1)


def published(agent: Supervised) -> list[str]:
    """The cards' series on the agent's /metrics."""
    try:
        lines = fetch(agent.api + "/metrics").decode().splitlines()
    except OSError:
        return []
    return sorted({line.partition("{")[0] for line in lines if line.startswith("vllm_agent_gpu_")})


def xid(account: Account, agent: Supervised, python: str, environment: Mapping[str, str], folder: Path) -> None:
    """A process of its own writes where it must not; the driver says so."""
    program = folder / "wild.py"
    program.write_text(WILD, encoding="utf-8")
    before = _counts(agent)
    begun = time.time()
    ended = subprocess.run(
        [python, str(program)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    deadline = time.monotonic() + 15
    while (new := {key: n - before.get(key, 0) for key, n in _counts(agent).items() if n > before.get(key, 0)}) == {}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    recent = [one for one in probe(agent, costly=False)["xids"]["recent"] if one["at"] >= begun]
    account.facts["xid"] = {"exit": ended.returncode, "stderr": ended.stderr[-600:], "new": new, "recent": recent}
    account.expect(bool(new), "the driver told no Xid of a wild write")
    account.say(f"a wild write ended with {ended.returncode}; Xids told: {new}")


def _counts(agent: Supervised) -> dict[str, int]:
    return {f"{one['gpu']}/{one['xid']}": one["count"] for one in probe(agent, costly=False)["xids"]["counts"]}


def nvml(account: Account, agent: Supervised, python: str, environment: Mapping[str, str], folder: Path,
         answers: Callable[[], bool]) -> None:  # fmt: skip
    """The whole case, on a server that serves. ``answers``: one request is answered."""
    first = probe(agent, costly=True)
    account.facts["driver"] = {key: first[key] for key in ("backend", "driver", "note", "xid_reason", "trouble")}
    account.expect(first["backend"] == "nvml" and not first["trouble"], f"NVML answers: {first['trouble']}")
    account.expect(first["xid_reason"] is None, f"Xid events are registered: {first['xid_reason']}")
    account.facts["not_told"] = {str(card["index"]): card["failed"] for card in first["cards"]}
    time.sleep(3)
    compare(account, agent, "at rest", moving=False)
    account.facts["field_costs_ms"] = {"at rest": field_costs(python, environment)}
    account.facts["probe_costs_ms"] = {"at rest": probe_costs(agent)}
    account.facts["processor"] = {"at rest": processor(agent, CPU_SECONDS)}
    with busy(agent):
        compare(account, agent, "under load", moving=True)
        account.facts["field_costs_ms"]["under load"] = field_costs(python, environment)
        account.facts["probe_costs_ms"]["under load"] = probe_costs(agent)
        account.facts["processor"]["under load"] = processor(agent, CPU_SECONDS)
    account.say(f"processor: {account.facts['processor']}")
    account.facts["published"] = published(agent)
    account.expect("vllm_agent_gpu_up" in account.facts["published"], "the cards are on the agent's /metrics")
    xid(account, agent, python, environment, folder)
    account.expect(answers(), "the server answers after the Xid of another process")
