"""`/metrics` of the stand-in: the families, labels, HELP, TYPE and buckets of a real server, with values that
move.

In come events of the API server and of the engine (`Registry.add`, `set`, `observe`); out comes the text of
the Prometheus exposition format 0.0.4 in the order in which vLLM prints it. The families are data, cut from a
real answer (``texts/metrics-VERSION.json``), so that the test against the captures compares two independent
renderings. prometheus_client is left out on purpose: the stand-in needs the standard library alone and must
not share a bug with the exporter that the agent itself uses.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from agent.sim.flags import TEXTS

Labels = tuple[str, ...]


@dataclass
class Series:
    """One labelled child: a value, or for histograms and summaries counts per bucket, sum and birth time."""

    created: float
    value: float = 0.0
    total: float = 0.0
    count: int = 0
    buckets: list[int] = field(default_factory=list)


@dataclass
class Family:
    """One metric family; ``labels`` are the label names in the order of the real output."""

    name: str
    type: str
    help: str
    labels: list[str]
    buckets: list[float] = field(default_factory=list)
    has_created: bool = False
    constant: dict[str, str] = field(default_factory=dict)
    series: dict[Labels, Series] = field(default_factory=dict)

    def child(self, labels: Labels) -> Series:
        """The child with these label values, born now if it is new."""
        child = self.series.get(labels)
        if child is None:
            child = Series(time.time(), buckets=[0] * (len(self.buckets) + 1))
            self.series[labels] = child
        return child


def number(value: float) -> str:
    """A sample value as prometheus_client prints it: 1.0, and from a million on 1.5e+06 with all its "
    "digits."""
    text = repr(float(value))
    dot = text.find(".")
    if "e" in text or not text[0].isdigit() or dot <= 6:
        return text
    digits = (text[:dot] + text[dot + 1 :]).rstrip("0")
    return f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e+{dot - 1:02d}"


def escape(value: str) -> str:
    """A label value between its quotes."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Registry:
    """All families of one server."""

    def __init__(self, version: str, model: str) -> None:
        self.engine: Labels = ("0", model)
        self.model = model
        self.families: dict[str, Family] = {}
        for raw in json.loads((TEXTS / f"metrics-{version}.json").read_text()):
            family = Family(
                name=raw["name"],
                type=raw["type"],
                help=raw["help"],
                labels=raw["labels"],
                buckets=raw.get("buckets", []),
                has_created=raw.get("created", False),
                constant=raw.get("constant", {}),
            )
            for row in raw["rows"]:
                family.child(tuple(value.replace("@model@", model) for value in row))
            self.families[family.name] = family
        self.set("vllm:engine_sleep_state", 1.0, sleep_state="awake")
        self._process_start = _start_time()

    def _labels(self, family: Family, extra: dict[str, str]) -> Labels:
        known = {"engine": "0", "model_name": self.model, **extra}
        return tuple(known[name] for name in family.labels)

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter; a family that this version lacks is skipped."""
        family = self.families.get(name)
        if family is not None and amount:
            family.child(self._labels(family, labels)).value += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge; a family that this version lacks is skipped."""
        family = self.families.get(name)
        if family is not None:
            family.child(self._labels(family, labels)).value = value

    def observe(self, name: str, value: float, times: int = 1, **labels: str) -> None:
        """Put a value into a histogram or summary."""
        family = self.families.get(name)
        if family is None:
            return
        child = family.child(self._labels(family, labels))
        child.total += value * times
        child.count += times
        child.buckets[bisect_left(family.buckets, value)] += times

    def info(self, name: str, **values: str) -> None:
        """An info family: its constant labels with these replaced, value 1."""
        family = self.families[name]
        labels = {**family.constant, **{k: v for k, v in values.items() if k in family.labels}}
        family.series.clear()
        family.child(tuple(labels[key] for key in family.labels)).value = 1.0

    def render(self) -> str:
        """The whole answer of ``GET /metrics``."""
        self._collect_process()
        lines: list[str] = []
        for family in self.families.values():
            lines += _render(family)
        return "\n".join(lines) + "\n"

    def _collect_process(self) -> None:
        """The python_* and process_* families of this very process."""
        for generation, stats in enumerate(gc.get_stats()):
            label = (str(generation),)
            self.families["python_gc_objects_collected_total"].child(label).value = stats["collected"]
            self.families["python_gc_objects_uncollectable_total"].child(label).value = stats["uncollectable"]
            self.families["python_gc_collections_total"].child(label).value = stats["collections"]
        major, minor, patch = platform.python_version_tuple()
        version = (platform.python_implementation(), major, minor, patch, platform.python_version())
        self.families["python_info"].child(version).value = 1.0
        pages = Path("/proc/self/statm").read_text().split()
        size = resource.getpagesize()
        values = {
            "process_virtual_memory_bytes": int(pages[0]) * size,
            "process_resident_memory_bytes": int(pages[1]) * size,
            "process_start_time_seconds": self._process_start,
            "process_cpu_seconds_total": round(sum(os.times()[:2]), 2),
            "process_open_fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        for name, value in values.items():
            self.families[name].child(()).value = value


def _start_time() -> float:
    """Seconds since the epoch at which this process started, from /proc/self/stat and the boot time."""
    ticks = float(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return float(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def _render(family: Family) -> list[str]:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}"]
    for labels, child in family.series.items():
        pairs = list(zip(family.labels, labels, strict=True))
        if family.type == "histogram":
            edges = [*map(number, family.buckets), "+Inf"]
            for edge, count in zip(edges, accumulate(child.buckets), strict=True):
                lines.append(f"{family.name}_bucket{_braces([*pairs, ('le', edge)])} {float(count)}")
        if family.type in ("histogram", "summary"):
            lines.append(f"{family.name}_count{_braces(pairs)} {float(child.count)}")
            lines.append(f"{family.name}_sum{_braces(pairs)} {number(child.total)}")
        else:
            lines.append(f"{family.name}{_braces(pairs)} {number(child.value)}")
    if family.has_created and family.series:
        stem = family.name.removesuffix("_total") if family.type == "counter" else family.name
        name = f"{stem}_created"
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} gauge"]
        for labels, child in family.series.items():
            pairs = list(zip(family.labels, labels, strict=True))
            lines.append(f"{name}{_braces(pairs)} {number(child.created)}")
    return lines


def _braces(pairs: list[tuple[str, str]]) -> str:
    """Labels in alphabetical order, as prometheus_client prints them."""
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in sorted(pairs)) + "}"
