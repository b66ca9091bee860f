"""What people decide: approve, deny, freeze, dry run; and a watcher that only looks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.loop.conftest import Start, order, serving, stand_in
from tests.support.load import Shape, run_burst
from tests.support.processes import free_port
from tests.support.supervised import Json, Supervised, agent_command, fetch, wait_until

TOO_SMALL = ("--max-model-len", "8192", "--fault", "kv-too-small=4096")


def waiting(agent: Supervised) -> Json:
    return agent.wait_incident(30, states=("awaiting-approval",))


def test_a_shorter_context_waits_for_a_person_and_serves_once_approved(start: Start) -> None:
    agent = start(*TOO_SMALL)
    incident = waiting(agent)
    assert incident["class"] == "kv-cache-too-small"
    assert "--max-model-len" in incident["actions"][0]["change"] or "max-model-len" in incident["actions"][0]["change"]
    assert not agent.health()
    order(agent, "approve", incident["id"])
    serving(agent)
    done = agent.wait_incident(30, states=("resolved",))
    assert done["actions"][-1]["state"] == "verified"


def test_a_denied_action_is_not_taken(start: Start) -> None:
    agent = start(*TOO_SMALL)
    incident = waiting(agent)
    order(agent, "deny", incident["actions"][0]["id"])
    done = agent.wait_incident(30, states=("unresolved",))
    assert done["actions"][0]["state"] == "denied"
    assert len(agent.exits()) == 1, "a start that must fail again is not repeated"
    assert "agent breaker reset" in done["note"]
    order(agent, "breaker", "reset")
    again = agent.wait_incident(30, index=1, states=("awaiting-approval",))
    assert again["class"] == "kv-cache-too-small" and len(agent.exits()) == 2
    order(agent, "approve", again["id"])
    serving(agent)


def test_frozen_nothing_is_done_until_thawed(start: Start) -> None:
    agent = start()
    serving(agent)
    order(agent, "freeze")
    engine = agent.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    agent.wait_exits(1)
    time.sleep(3)
    assert not agent.health(), "a frozen agent restarted the server"
    order(agent, "thaw")
    serving(agent)


def test_a_dry_run_proposes_the_change_and_changes_nothing(start: Start) -> None:
    agent = start("--max-num-seqs", "16", "--fault", "oom-above=8", settings={"dry_run": True})
    serving(agent)
    assert run_burst(agent.url, Shape(requests=16, concurrency=16, max_tokens=60)).lost > 0
    incident = agent.wait_incident(30, states=("unresolved", "resolved"))
    assert {action["state"] for action in incident["actions"]} == {"proposed"}
    assert not (agent.run_dir / "overrides.json").exists()


def test_attached_the_cause_is_named_and_only_proposed(tmp_path: Path) -> None:
    port, listen = free_port(), free_port()
    log = tmp_path / "vllm.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            stand_in(port, "--max-num-seqs", "16", "--fault", "oom-above=8"), stdout=out, stderr=out
        )
    url = f"http://127.0.0.1:{port}"
    command = [*agent_command(), "watch", "--url", url, "--log", str(log), "--listen", f"127.0.0.1:{listen}"]
    said = (tmp_path / "watch.log").open("wb")
    watcher = subprocess.Popen([*command, "--state-dir", str(tmp_path / "state")], stderr=said)
    look = Supervised(tmp_path, [], port, listen=listen)
    try:
        wait_until(20, "serving", lambda: look.state() == "serving")
        assert run_burst(url, Shape(requests=16, concurrency=16, max_tokens=60)).lost > 0
        incident = wait_until(20, "an incident", lambda: next((i for i in look.incidents() if i["actions"]), None))
        assert (incident["class"], incident["mechanism"]) == ("oom-serving", "batch")
        assert {action["state"] for action in incident["actions"]} == {"proposed"}
        assert b"vllm_agent_server_state" in fetch(f"http://127.0.0.1:{listen}/metrics")
    finally:
        for process in (watcher, server):
            process.terminate()
        assert watcher.wait(20) == 0
        server.wait(20)
        said.close()


def test_a_wrong_port_is_unknown_with_a_reason_and_never_a_traceback(tmp_path: Path) -> None:
    listen = free_port()
    command = [*agent_command(), "watch", "--url", "http://127.0.0.1:9", "--listen", f"127.0.0.1:{listen}"]
    with (tmp_path / "watch.log").open("wb") as said:
        watcher = subprocess.Popen([*command, "--state-dir", str(tmp_path / "state")], stderr=said)
    look = Supervised(tmp_path, [], 9, listen=listen)
    try:
        status = wait_until(
            20,
            "a reason",
            lambda: (s := look.status()) and s["state"] == "unknown" and "refused" in s["reason"] and s,
        )
        assert any(one["check"] == "vllm metrics" for one in status["not_measured"])
    finally:
        watcher.terminate()
        assert watcher.wait(20) == 0
    assert "Traceback" not in (tmp_path / "watch.log").read_text()
