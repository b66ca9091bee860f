"""``make demo``: the closed loop, told in plain words while it happens.

In: ``--engine sim`` (the built-in stand-in) or ``vllm`` (the real vLLM on CPU with a test plugin that runs
out of memory above 8 running sequences). Out: a timeline on the terminal and an exit code: 0 only where the
burst that killed the server was answered in full at the end and the agent itself called the repair
verified.

It is a user of the agent, nothing more: it starts ``agent run`` as a command, sends load to the server, and
reads ``/api/v1/status`` and ``/api/v1/incidents``. It repairs nothing and knows no remedy.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import vllm_cpu  # noqa: E402
from tests.support.load import Outcomes, Shape, run_burst  # noqa: E402
from tests.support.processes import free_port  # noqa: E402
from tests.support.supervised import Supervised, Waited  # noqa: E402

BATCH = 64
FITS = 8
ROUNDS = 6
QUIET_SECONDS = 8.0
BURST = Shape(requests=BATCH, concurrency=BATCH, max_tokens=100)
# The default is 60 s; a demo may be shorter, the check is the same.
SETTINGS = {"verify": {"hold_seconds": 15}}


class Story:
    """Prints one line a fact, stamped with the seconds since the start; says so when nothing happened for
    long.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = now()
        self._last = now()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return self._now() - self._begun

    def say(self, text: str) -> None:
        with self._lock:
            self._last = self._now()
            for number, line in enumerate(text.splitlines()):
                stamp = f"[{self.seconds:6.1f} s]" if number == 0 else " " * 10
                print(f"{stamp} {line}", flush=True)

    def quiet(self, text: str) -> None:
        """Say ``text`` only where nothing was said for a while."""
        if self._now() - self._last >= QUIET_SECONDS:
            self.say(text)


class Watcher:
    """Follows the agent's own account of the server and of its incidents, and tells what changed."""

    def __init__(self, story: Story, agent: Supervised) -> None:
        self._story = story
        self._agent = agent
        self._state: str | None = None
        self._told: set[tuple[str, ...]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="story", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _follow(self) -> None:
        while not self._stop.wait(0.2):
            self.look()

    def look(self) -> None:
        """One look; called from the thread, and once more at the end."""
        status = self._agent.status()
        state = status.get("state") if status else None
        if state and state != self._state:
            self._state = state
            self._story.say(f"server: {state}")
        for incident in self._agent.incidents():
            self._incident(incident)
        self._story.quiet(f"(still {self._state or 'waiting for the agent'})")

    def _once(self, *key: str) -> bool:
        if key in self._told:
            return False
        self._told.add(key)
        return True

    def _incident(self, incident: Mapping[str, Any]) -> None:
        name = incident["id"]
        named = (str(incident["class"]), str(incident.get("mechanism")), incident["summary"])
        if self._once(name, *named):
            mechanism = f", mechanism {incident['mechanism']}" if incident.get("mechanism") else ""
            self._story.say(f"incident {name}: {incident['class']}{mechanism} ({incident['confidence']})")
            self._story.say(f"  cause: {incident['summary']}")
        for evidence in incident.get("evidence", [])[:3]:
            if self._once(name, evidence["where"]):
                self._story.say(f"  evidence: {evidence['where']}: {evidence['text'].strip()[:240]}")
        for action in incident.get("actions", []):
            self._action(action)
        if self._once(name, incident["state"]):
            self._story.say(f"incident {name}: {incident['state']}")

    def _action(self, action: Mapping[str, Any]) -> None:
        name = action["id"]
        if self._once(name, "planned"):
            self._story.say(f"action {name}: {action['action']}, {action['change']} (mode {action['mode']})")
            for line in action.get("why", []):
                self._story.say(f"  {line}")
        if self._once(name, action["state"]):
            outcome = f": {action['outcome']}" if action.get("outcome") else ""
            self._story.say(f"action {name}: {action['state']}{outcome}")


def stand_in(folder: Path, port: int, fits: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the stand-in, with a card that its own ``nvidia-smi`` shows."""
    tools = folder / "bin"
    tools.mkdir(parents=True)
    card = folder / "card.csv"
    smi = tools / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m agent.sim.smi "$@"\n', encoding="utf-8")
    smi.chmod(0o755)
    command = [sys.executable, "-m", "agent", "sim", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", vllm_cpu.MODEL_NAME, "--max-num-seqs", str(BATCH)]
    command += ["--sim-smi", str(card), "--fault", f"oom-above={fits}"]
    environment = {
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(ROOT),
        "VLLM_SIM_SMI": str(card),
    }
    return command, environment


def real_vllm(port: int, fits: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the real vLLM on CPU; raises SystemExit where it is not installed."""
    if not vllm_cpu.installed():
        raise SystemExit("demo: the real vLLM is not installed\n  remedy: make vllm")
    return vllm_cpu.serve_command(port, "--max-num-seqs", str(BATCH)), vllm_cpu.environment(oom_above=fits)


def burst(story: Story, agent: Supervised, number: int) -> Outcomes:
    """Send the burst: as many requests at once as the operator's batch allows."""
    story.say(f"load: {'a burst of' if number == 0 else 'the same burst again,'} {BATCH} requests at once")
    outcomes = run_burst(agent.url, BURST)
    story.say(f"load: {outcomes}")
    return outcomes


def settle(agent: Supervised, exits_before: int, seconds: float) -> None:
    """Wait until the death that the burst caused is repaired: exit recorded, serving, and no action under
    way.
    """

    def repaired() -> bool:
        acting = [i for i in agent.incidents() if i["state"] in ("open", "acting")]
        return len(agent.exits()) > exits_before and agent.state() == "serving" and not acting

    agent.wait(seconds, "the repair", repaired)


def repeat_until_answered(story: Story, agent: Supervised, seconds: float) -> int:
    """Send the burst again and again until it is answered in full; the number of deaths on the way."""
    for deaths in range(ROUNDS):
        before = len(agent.exits())
        if burst(story, agent, deaths).lost == 0:
            return deaths
        settle(agent, before, seconds)
    raise Waited(f"the burst was not answered after {ROUNDS} rounds\n{agent.picture()}")


def check_verified(agent: Supervised) -> list[str]:
    """What is missing for a verified repair; empty where nothing is."""
    found = [i for i in agent.incidents() if i["class"] == "oom-serving"]
    missing = [] if found else ["no incident of the class oom-serving"]
    missing += [f"incident {i['id']} is {i['state']}, not resolved" for i in found if i["state"] != "resolved"]
    actions = [a for i in found for a in i["actions"] if a["state"] == "verified"]
    if not any("--max-num-seqs" in json.dumps(a["delta"]) for a in actions):
        missing.append("no verified action that makes the batch smaller")
    return missing


def play(story: Story, agent: Supervised, start_seconds: float) -> None:
    """The whole story; raises :class:`Waited` where the agent does not do what it should."""
    agent.wait_state("serving", start_seconds)
    deaths = repeat_until_answered(story, agent, start_seconds + 60)
    if deaths == 0:
        raise Waited("the first burst was answered, so nothing was shown: the fault did not act")
    agent.wait(90, "the agent's own proof", lambda: not check_verified(agent))


def run(engine: str, folder: Path, fits: int) -> int:
    story = Story()
    port = free_port()
    command, environment = stand_in(folder, port, fits) if engine == "sim" else real_vllm(port, fits)
    shown = "agent sim" if engine == "sim" else f"vllm {vllm_cpu.VERSION} (CPU)"
    story.say(f"start: agent run -- {shown} --max-num-seqs {BATCH}; it runs out of memory above {fits} sequences")
    agent = Supervised(folder, command, port, environment=environment, settings=SETTINGS)
    start_seconds = 60.0 if engine == "sim" else 180.0
    try:
        with agent, Watcher(story, agent) as watcher:
            play(story, agent, start_seconds)
            watcher.look()
            stopped = agent.stop()
        story.say(f"stop: the agent and the server ended with exit code {stopped}")
    except Waited as failure:
        print(f"demo: FAILED: {failure}", file=sys.stderr, flush=True)
        return 1
    print(f"demo: verified in {story.seconds:.0f} s", flush=True)
    return 0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="demo", description="the closed loop, shown")
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and state (default: temporary)")
    parser.add_argument("--oom-above", type=int, default=FITS, help="sequences that fit (default %(default)s)")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.keep:
        options.keep.mkdir(parents=True)
        return run(options.engine, options.keep.resolve(), options.oom_above)
    with tempfile.TemporaryDirectory(prefix="vllm-agent-demo-") as folder:
        return run(options.engine, Path(folder), options.oom_above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
