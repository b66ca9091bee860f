"""The closed loop on a real NVIDIA GPU: four faults that a CPU cannot show, provoked, named, repaired,
proven.

In: a machine with CUDA, vLLM under ``--site``, the tokenizer folder of the tiny model. Out, for each
scenario, in the output folder: ``NAME.json`` (timeline, bursts, incidents, exit records, what was missing)
and ``NAME.log.gz`` (all that the server and the agent printed). Results are written as each scenario ends,
so a cut run loses only the last.

Scenarios (the shapes that made each fault appear on one H200, 140 GiB):
  own        an out-of-memory of the server's own making: the reserve exceeds the request, so it is
  fragmentation;
             expected cure: expandable segments at unchanged batch
  own-batch  the same with that remedy switched off in the configuration; expected cure: a smaller batch
  neighbour  another process fills the card, then the same burst; expected: the neighbour named, the server
  fitted ptxas      an assembler that does not know the GPU; expected cure: another assembler, proven before
  it is set
  nvml       no fault: the cards' figures against nvidia-smi, the cost of each, one Xid of another process

Nothing here knows a remedy: the driver starts ``agent run``, sends load, and reads the agent's API.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nvml_case import nvml as cards_of_a_real_driver  # noqa: E402

from tests.support.load import Shape, run_burst  # noqa: E402
from tests.support.processes import free_port  # noqa: E402
from tests.support.supervised import Json, Supervised, Waited, tail  # noqa: E402

START_SECONDS = 200.0
REPAIR_SECONDS = 260.0
SETTINGS: dict[str, Any] = {"verify": {"hold_seconds": 5}, "backoff_seconds": [0]}
# 100 prompts of 2,000 tokens with their log probabilities: memory that vLLM's profiling run does not count.
BURST = Shape(
    requests=100,
    concurrency=100,
    max_tokens=16,
    model="m",
    prompt_tokens=2000,
    prompt_logprobs=5,
    timeout_seconds=90,
)
# Prompts of many lengths leave blocks of many sizes behind, which is what fragments an allocator.
BURSTS = (
    BURST,
    replace(BURST, prompt_tokens=2200, prompt_spread=500),
    replace(BURST, prompt_tokens=2600, prompt_spread=900, requests=200, concurrency=200),
)
WARM = Shape(requests=8, concurrency=8, max_tokens=16, model="m", prompt_tokens=300, timeout_seconds=90)
ONE = Shape(requests=1, concurrency=1, max_tokens=8, model="m", prompt_tokens=50, timeout_seconds=90)
EAGER = ("--enforce-eager",)
FULL = (
    *EAGER,
    "--gpu-memory-utilization",
    "0.98",
    "--max-num-seqs",
    "1024",
    "--max-num-batched-tokens",
    "65536",
)
SHARED = (
    *EAGER,
    "--gpu-memory-utilization",
    "0.3",
    "--max-num-seqs",
    "1024",
    "--max-num-batched-tokens",
    "65536",
)
# A 1B-shaped Llama without weights (--load-format dummy).
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
# Answers --version like CUDA 12.0 and refuses the GPU, as an assembler of that age does.
OLD_ASSEMBLER = """#!/bin/sh
case "$*" in *--version*)
  echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
  echo "Cuda compilation tools, release 12.0, V12.0.140"
  exit 0;;
esac
echo "ptxas fatal   : Value 'sm_90a' is not defined for option 'gpu-name'" >&2
exit 255
"""
NEIGHBOUR = """
import sys, time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(int(free - float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print(held.numel(), flush=True)
time.sleep(900)
"""


@dataclass
class Record:
    """The account of one scenario, written whole at its end whatever happened."""

    name: str
    begun: float = field(default_factory=time.monotonic)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        at = round(time.monotonic() - self.begun, 2)
        moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self.timeline.append({"seconds": at, "at": moment, "what": text})
        print(f"{self.name} {at:7.1f} s  {text}", flush=True)

    def expect(self, holds: bool, text: str) -> None:
        """Note what should hold; the scenario goes on either way, device time is dear."""
        if not holds:
            self.missing.append(text)
            self.say(f"MISSING: {text}")


@dataclass(frozen=True)
class Machine:
    """Where things lie on the CUDA machine."""

    python: str
    site: Path
    model: Path
    work: Path
    out: Path

    def serve(self, port: int, *flags: str) -> list[str]:
        command = [self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)]
        command += ["--load-format", "dummy", "--served-model-name", "m", "--host", "127.0.0.1"]
        return [*command, "--port", str(port), "--max-model-len", "8192", *flags]

    def environment(self, scenario: str) -> dict[str, str]:
        """Each scenario has its own caches, so that no kernel compiled earlier hides a fault."""
        caches = self.work / f"cache-{scenario}"
        return {
            "PYTHONPATH": str(self.site),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_CACHE_ROOT": str(caches / "vllm"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        }


def make_model(tokenizer: Path, folder: Path) -> None:
    """A model of 1B shape without weights: the tiny tokenizer beside a larger config.json."""
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | LLAMA_1B), encoding="utf-8")


@contextmanager
def neighbour(machine: Machine, leave_gib: float) -> Iterator[int]:
    """Another process that holds all of the card but ``leave_gib``; yields its bytes."""
    process = subprocess.Popen([machine.python, "-c", NEIGHBOUR, str(leave_gib)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline() or 0)
    finally:
        process.kill()
        process.wait()


class Follower:
    """Writes each change of state and of the incidents into the record, five times a second."""

    def __init__(self, record: Record, agent: Supervised) -> None:
        self._record = record
        self._agent = agent
        self._seen: set[tuple[str, ...]] = set()
        self._state: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _follow(self) -> None:
        while not self._stop.wait(0.2):
            state = self._agent.state()
            if state and state != self._state:
                self._state = state
                self._record.say(f"state {state}")
            for incident in self._agent.incidents():
                self._incident(incident)

    def _incident(self, incident: Json) -> None:
        kind = f"{incident['class']}/{incident.get('mechanism')}"
        self._once(f"incident {incident['id']} {kind} {incident['state']}: {incident['summary']}")
        for action in incident.get("actions", []):
            change = f"{action['action']}: {action['change']}"
            self._once(f"action {action['id']} {change}: {action['state']} {action.get('outcome') or ''}")

    def _once(self, text: str) -> None:
        if (text,) not in self._seen:
            self._seen.add((text,))
            self._record.say(text)


def send(record: Record, agent: Supervised, name: str, shape: Shape) -> int:
    """One burst into the record; the number of lost requests."""
    outcomes = run_burst(agent.url, shape)
    record.facts.setdefault("bursts", []).append({"name": name, **outcomes.summary()})
    record.say(f"{name}: {outcomes}")
    return outcomes.lost


def serving(agent: Supervised, seconds: float) -> None:
    """Wait until it serves; an incident that the agent gave up ends the wait at once, device time is dear."""

    def check() -> bool:
        for incident in agent.incidents():
            if incident["state"] == "unresolved":
                raise Waited(f"the agent gave up {incident['id']}: {incident.get('note')}\n{agent.picture()}")
        return agent.health() and agent.state() == "serving"

    agent.wait(seconds, "serving", check)


def until_broken(record: Record, agent: Supervised) -> Shape | None:
    """Send bursts of growing and more varied prompts until one breaks the server; that one, or None."""
    for number, shape in enumerate(BURSTS):
        if send(record, agent, f"burst {number + 1} ({shape.prompt_tokens} ± {shape.prompt_spread} tokens)", shape):
            return shape
    record.expect(False, "no burst broke the server, so nothing was shown")
    return None


def until_answered(record: Record, agent: Supervised, rounds: int = 4) -> None:
    """The burst that breaks it, then the same again after each repair until it is answered in full."""
    shape = until_broken(record, agent)
    for deaths in range(1, rounds + 1):
        if shape is None:
            return
        agent.wait_exits(deaths)
        serving(agent, REPAIR_SECONDS)
        if send(record, agent, f"the same burst after {deaths} repairs", shape) == 0:
            return
    record.expect(False, f"the burst was not answered within {rounds} rounds")


def closed(record: Record, agent: Supervised, fault: str, mechanism: str | None, action: str) -> None:
    """Wait for the end of the incident and note whether it is the one that was expected."""
    last = agent.wait(60, "the end of the incident", lambda: ended(agent.incidents()))
    found = agent.incidents()
    named = {(incident["class"], incident.get("mechanism")) for incident in found}
    taken = {a["action"] for incident in found for a in incident["actions"] if a["state"] == "verified"}
    record.expect((fault, mechanism) in named, f"expected {fault}/{mechanism}, named {sorted(map(str, named))}")
    record.expect(action in taken, f"expected a verified {action}, verified were {sorted(taken)}")
    record.expect(last["state"] == "resolved", f"the incident ended as {last['state']}")


def ended(incidents: Sequence[Json]) -> Json | None:
    """The newest incident once none is under way."""
    if incidents and all(incident["state"] in ("resolved", "unresolved") for incident in incidents):
        return incidents[-1]
    return None


def own(record: Record, agent: Supervised, _: Machine) -> None:
    serving(agent, START_SECONDS)
    send(record, agent, "warm", WARM)
    until_answered(record, agent)
    closed(record, agent, "oom-serving", "fragmentation", "oom-expandable-segments")


def own_batch(record: Record, agent: Supervised, _: Machine) -> None:
    serving(agent, START_SECONDS)
    send(record, agent, "warm", WARM)
    until_answered(record, agent)
    closed(record, agent, "oom-serving", "fragmentation", "oom-reduce-batch")


def beside_a_neighbour(record: Record, agent: Supervised, machine: Machine) -> None:
    serving(agent, START_SECONDS)
    send(record, agent, "warm", WARM)
    with neighbour(machine, leave_gib=0.5) as held:
        record.say(f"a neighbour holds {held / 2**30:.2f} GiB")
        until_answered(record, agent)
        closed(record, agent, "oom-serving", "neighbour", "oom-fit-neighbour")


def old_assembler(record: Record, agent: Supervised, _: Machine) -> None:
    serving(agent, 2 * START_SECONDS)
    record.expect(send(record, agent, "one request", ONE) == 0, "no answer after the repair")
    closed(record, agent, "triton-ptxas", None, "ptxas-path")


def cards(record: Record, agent: Supervised, machine: Machine) -> None:
    serving(agent, START_SECONDS)
    send(record, agent, "warm", WARM)
    environment = machine.environment("nvml")

    def answers() -> bool:
        return send(record, agent, "one request", ONE) == 0

    cards_of_a_real_driver(record, agent, machine.python, environment, machine.work, answers)
    record.expect(not agent.incidents(), f"no incident: {agent.incidents()}")


Steps = Callable[[Record, Supervised, Machine], None]
SCENARIOS: Mapping[str, tuple[Steps, tuple[str, ...], dict[str, Any]]] = {
    "own": (own, FULL, {}),
    "ptxas": (old_assembler, ("--gpu-memory-utilization", "0.4"), {}),
    "neighbour": (beside_a_neighbour, SHARED, {}),
    "nvml": (cards, (*EAGER, "--gpu-memory-utilization", "0.4"), {}),
    "own-batch": (own_batch, FULL, {"actions": {"oom-expandable-segments": "off"}}),
}


def prepare(machine: Machine, name: str) -> Supervised:
    """The agent around a server of this scenario, not yet started."""
    _, flags, settings = SCENARIOS[name]
    environment = machine.environment(name)
    if name == "ptxas":
        assembler = machine.work / "old-cuda" / "ptxas"
        assembler.parent.mkdir(exist_ok=True)
        assembler.write_text(OLD_ASSEMBLER, encoding="utf-8")
        assembler.chmod(0o755)
        environment |= {"TRITON_PTXAS_PATH": str(assembler), "TRITON_PTXAS_BLACKWELL_PATH": str(assembler)}
    port = free_port()
    return Supervised(
        machine.work / name,
        machine.serve(port, *flags),
        port,
        environment=environment,
        settings=SETTINGS | settings,
    )


def gpu() -> str:
    """The card's own account, for the record."""
    query = "--query-gpu=name,driver_version,memory.total,memory.used"
    return subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()


def write(machine: Machine, record: Record, agent: Supervised) -> None:
    """``NAME.json`` and ``NAME.log.gz``."""
    machine.out.mkdir(parents=True, exist_ok=True)
    whole = {"scenario": record.name, "gpu": gpu(), "command": agent.argv(), **record.facts}
    whole |= {"missing": record.missing, "timeline": record.timeline}
    text = json.dumps(whole, indent=1, default=str)
    (machine.out / f"{record.name}.json").write_text(text + "\n", encoding="utf-8")
    if agent.output.exists():
        with agent.output.open("rb") as log, gzip.open(machine.out / f"{record.name}.log.gz", "wb") as packed:
            shutil.copyfileobj(log, packed)


def play(machine: Machine, name: str) -> bool:
    """One scenario from start to written result; True where nothing was missing."""
    record = Record(name)
    agent = prepare(machine, name)
    record.say(f"start on {gpu()}")
    try:
        with agent, Follower(record, agent):
            try:
                SCENARIOS[name][0](record, agent, machine)
            finally:
                record.facts |= {
                    "incidents": agent.incidents(),
                    "exits": agent.exits(),
                    "status": agent.status(),
                }
            record.say(f"stopped with {agent.stop()}")
    except (Waited, subprocess.TimeoutExpired, OSError) as failure:
        record.missing.append(str(failure)[:2000])
        record.say(f"FAILED: {str(failure)[:300]}")
        print(tail(agent.output, 1500), flush=True)
    finally:
        write(machine, record, agent)
    return not record.missing


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="run_h200", description="the closed loop on a CUDA machine")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tiny model")
    parser.add_argument("--site", type=Path, default=Path("/tmp/site"), help="where vLLM lies")
    parser.add_argument("--python", default="python3", help="the Python that has torch (default: %(default)s)")
    parser.add_argument("scenarios", nargs="+", choices=list(SCENARIOS))
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="h200-"))
    python = shutil.which(options.python) or options.python
    machine = Machine(python, options.site, work / "model", work, options.out.resolve())
    make_model(options.tokenizer.resolve(), machine.model)
    os.chdir(work)  # so that no package of the checkout is found by vLLM's own processes
    passed = [play(machine, name) for name in options.scenarios]  # each is run, whatever became of the others
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
