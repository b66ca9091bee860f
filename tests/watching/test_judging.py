"""The rules in the watcher: judged at the scrape, told once, kept across restarts and reloads, never in the way."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.model import Alert, AlertState, Incident, IncidentState
from agent.notify import Dispatcher, Subject
from agent.series import Store
from agent.serve import AgentMetrics
from agent.watch.judges import instance
from agent.watch.narrate import Narrator
from agent.watch.report import AFTER_SECONDS, Report
from tests.watching.server import Answers, serving
from tests.watching.test_pieces import OPEN
from tests.watching.test_whole_watcher import Running, running
from tests.watching.watcher import LeapClock

RULE = """
groups:
  - name: mine
    rules:
      - alert: Busy
        expr: vllm:num_requests_running > {limit}
        {more}
        labels: {{severity: warning}}
        annotations:
          summary: It is busy
          description: "{{{{ $value }}}} run in engine {{{{ $labels.engine }}}}"
          runbook_url: https://runbooks.invalid/runbooks/Busy
"""


def rules(folder: Path, *, limit: int = 3, more: str = "") -> Path:
    file = folder / "mine.yaml"
    file.write_text(RULE.format(limit=limit, more=more))
    return file


def settings(server: Answers, file: Path, more: str = "") -> str:
    return f"servers: [{{name: chat, url: '{server.url}'}}]\nrules: {{paths: [{file}]}}\n{more}"


def load(server: Answers, running_now: int) -> None:
    server.series = f'vllm:num_requests_running{{engine="0"}} {running_now}\n'


def busy(run: Running) -> list[Alert]:
    return [one for one in run.watcher.alerts() if one.name == "Busy"]


def said(run: Running, words: str) -> int:
    return run.said.getvalue().count(words)


async def until(run: Running, check: Any) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline, (run.watcher.alerts(), run.said.getvalue())
        await asyncio.sleep(0.01)


def status(run: Running, rule: str) -> dict[str, Any]:
    """Its entry; while the rules are being read it is not there yet."""
    return dict(next((one for one in run.watcher.rules() if one["rule"] == rule), {"unknown": "not read yet"}))


async def test_an_alert_fires_at_the_scrape_and_ends_with_its_reason(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path))) as run:
        load(server, 1)
        await until(run, lambda: status(run, "Busy")["unknown"] is None)
        assert (status(run, "Busy")["state"], status(run, "Busy")["server"]) == ("inactive", "chat")
        load(server, 7)
        await until(run, lambda: busy(run))
        (alert,) = busy(run)
        assert (alert.state, alert.value, alert.server) == (AlertState.FIRING, 7.0, "chat")
        assert alert.labels["instance"] == server.url.removeprefix("http://") and alert.labels["job"] == "vllm"
        metrics = run.watcher._metrics.registry.get_sample_value
        labels = {"server": "chat", "rule": "Busy", "state": "firing"}
        assert metrics("vllm_agent_alerts", labels) == 1
        load(server, 0)
        await until(run, lambda: not busy(run))
        assert metrics("vllm_agent_alerts", labels) is None
        assert "ALERT Busy of chat [warning]: It is busy" in run.said.getvalue()
        assert "7 run in engine 0" in run.said.getvalue() and "alert Busy of chat is over" in run.said.getvalue()
        kinds = [(one.kind, one.data["state"]) for one in run.watcher._journal.events() if one.kind == "alert"]
        assert kinds == [("alert", "firing"), ("alert", "resolved")]


@pytest.mark.parametrize(
    ("base", "link"),
    [("", None), ("runbook_base_url: https://docs.example/ops\n", "https://docs.example/ops/runbooks/Busy")],
)
async def test_a_runbook_leads_somewhere_or_is_left_out(tmp_path: Path, base: str, link: str | None) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path), base)) as run:
        load(server, 7)
        await until(run, lambda: busy(run))
        (alert,) = busy(run)
        assert (alert.runbook, alert.annotations.get("runbook_url")) == (link, link)


async def test_what_fires_is_told_once_over_a_restart_of_the_watcher(tmp_path: Path) -> None:
    async with serving() as server:
        load(server, 7)
        text = settings(server, rules(tmp_path, more="for: 300ms"))
        async with running(tmp_path, text) as run:
            await until(run, lambda: busy(run) and busy(run)[0].state is AlertState.FIRING)
            (before,) = busy(run)
        async with running(tmp_path, text) as again:
            await until(again, lambda: status(again, "Busy").get("evaluated_at") is not None)
            (after,) = busy(again)
            assert (after.starts_at, after.state) == (before.starts_at, AlertState.FIRING)
            load(server, 0)
            await until(again, lambda: not busy(again))
            assert said(again, "ALERT Busy") == 0 and said(again, "alert Busy of chat is over") == 1


async def test_windows_are_full_again_after_a_restart_of_the_watcher(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    rule = "{alert: Most, expr: 'max_over_time(vllm:num_requests_running[10m]) > 5', labels: {severity: info}}"
    file.write_text(f"groups: [{{name: g, rules: [{rule}]}}]")
    async with serving() as server:
        load(server, 7)
        async with running(tmp_path, settings(server, file)) as run:
            await until(run, lambda: any(one.name == "Most" for one in run.watcher.alerts()))
        load(server, 0)
        async with running(tmp_path, settings(server, file)) as again:
            await until(again, lambda: status(again, "Most").get("evaluated_at") is not None)
            assert status(again, "Most")["value"] == 7.0, "the 7 was scraped by the life before"


async def test_a_broken_rule_file_is_named_and_the_shipped_rules_are_judged(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("groups:\n  - name: g\n    rules:\n      - alert: A\n        expr: sum(\n")
    async with serving() as server, running(tmp_path, settings(server, file)) as run:
        await run.until_states(chat="serving")
        await until(run, lambda: any(one["server"] == "chat" for one in run.watcher.rules()))
        assert f"only the shipped rules are judged: {file}:4" in run.said.getvalue()
        assert str(file) in run.watcher.status()["rules"]["problem"]
        assert status(run, "VLLMServerUnreachable")["state"] == "inactive"


async def test_a_reload_takes_new_rules_and_keeps_what_fires(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path))) as run:
        load(server, 7)
        await until(run, lambda: busy(run))
        (before,) = busy(run)
        file = rules(tmp_path)
        file.write_text(
            file.read_text()
            + "      - {alert: More, expr: 'vllm:num_requests_running > 6', labels: {severity: info}}\n"
        )
        await run.reload()
        await until(run, lambda: any(one.name == "More" for one in run.watcher.alerts()))
        assert busy(run)[0].starts_at == before.starts_at and said(run, "ALERT Busy") == 1
        file.write_text("groups: [")
        await run.reload()
        await until(run, lambda: said(run, "rules not read again, the old ones stay") == 1)
        assert len(busy(run)) == 1


async def test_a_server_that_does_not_answer_is_down_for_its_rules(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("groups: [{name: g, rules: [{alert: Down, expr: up == 0, labels: {severity: info}}]}]")
    async with running(
        tmp_path, f"servers: [{{name: chat, url: 'http://127.0.0.1:9'}}]\nrules: {{paths: [{file}]}}\n"
    ) as run:
        await until(run, lambda: any(one.name == "Down" for one in run.watcher.alerts()))
        assert status(run, "VLLMQueueLong")["unknown_kind"] in ("scrape-fails", "not-yet")


async def test_a_defect_of_the_judging_is_said_once_and_ends_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Store, "scraped", broken)
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path))) as run:
        await run.until_states(chat="serving")
        await asyncio.sleep(0.3)
        assert said(run, "the judging of rules fails: RuntimeError: a defect") == 1
        assert run.servers()["chat"]["state"] == "serving"


async def test_rules_that_are_not_wanted_are_not_judged(tmp_path: Path) -> None:
    async with serving() as server:
        text = f"servers: [{{name: chat, url: '{server.url}'}}]\nrules: {{enabled: false}}\n"
        async with running(tmp_path, text) as run:
            await run.until_states(chat="serving")
            assert (run.watcher.rules(), run.watcher.alerts()) == ([], ())
            assert run.watcher.status()["rules"] == {"enabled": False, "problem": None}


async def test_a_rule_that_cannot_be_judged_shows_with_the_kind_of_its_reason(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path))) as run:
        metrics = run.watcher._metrics.registry.get_sample_value
        labels = {"server": "agent", "rule": "VLLMGpuLost", "reason": "needs-feature"}
        await until(run, lambda: metrics("vllm_agent_rule_unknown", labels) == 1)
        assert status(run, "VLLMGpuLost")["unknown"].startswith("no GPU of the server is read here")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("https://user:secret@host/root", "host:443"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("unix:/run/vllm.sock", ""),
    ],
)
def test_an_instance_is_host_and_port(url: str, name: str) -> None:
    assert instance(url) == name


# -- alerts beside an incident --------------------------------------------------------------------------------

FIRING = Alert(
    server="chat",
    labels={"alertname": "VLLMQueueLong", "severity": "warning"},
    annotations={"summary": "Requests queue"},
    state=AlertState.FIRING,
    active_at="2026-01-01T00:00:00.000Z",
    starts_at="2026-01-01T00:00:00.000Z",
    value=12.0,
)
OVER = msgspec.structs.replace(FIRING, state=AlertState.RESOLVED, ends_at="2026-01-01T00:00:30.000Z")


class Heard(Dispatcher):
    """What would be a message, and what goes to those who are pushed the whole state alone."""

    def __init__(self) -> None:
        self.messages: list[Subject] = []
        self.pushed: list[Subject] = []

    def publish(self, subject: Subject) -> None:
        self.messages.append(subject)

    def remind(self, subject: Subject) -> None:
        self.pushed.append(subject)

    @property
    def alerts(self) -> list[Subject]:
        return [one for one in self.messages if isinstance(one, Alert)]


def report() -> tuple[Report, Heard, LeapClock]:
    clock, heard = LeapClock(), Heard()
    return Report(Narrator(io.StringIO(), clock), AgentMetrics(clock), heard, clock), heard, clock


def closed(state: IncidentState = IncidentState.RESOLVED) -> Incident:
    return msgspec.structs.replace(OPEN, state=state, resolved_at="2026-01-01T00:00:09.000Z")


def test_an_alert_during_an_incident_is_its_symptom_and_no_message() -> None:
    one, heard, _ = report()
    one.incident(OPEN)
    one.alert(FIRING)
    one.alert(OVER)
    assert heard.alerts == [] and heard.pushed == [FIRING, OVER]
    one.alert(msgspec.structs.replace(FIRING, server="other"))
    assert len(heard.alerts) == 1, "the incident is not the other server's"


def test_what_still_fires_long_after_the_incident_is_a_message_and_so_is_its_end() -> None:
    one, heard, clock = report()
    one.incident(OPEN)
    one.alert(FIRING)
    one.incident(closed())
    one.look()
    assert heard.alerts == [], "the windows of the rules still hold the outage"
    clock.leap(AFTER_SECONDS + 1)
    one.look()
    one.look()
    assert heard.alerts == [FIRING]
    one.alert(OVER)
    assert heard.alerts == [FIRING, OVER]


def test_what_was_told_before_the_incident_is_told_as_over_during_it() -> None:
    one, heard, _ = report()
    one.alert(FIRING)
    one.incident(OPEN)
    one.alert(OVER)
    assert heard.alerts == [FIRING, OVER]


async def test_the_same_trouble_with_other_numbers_is_said_once(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, settings(server, rules(tmp_path))) as run:
        for count in range(3, 9):
            server.series = "broken line\n" * count
            await asyncio.sleep(0.1)
        await until(run, lambda: said(run, "unreadable lines of /metrics") > 0)
        assert said(run, "unreadable lines of /metrics") == 1
        server.series = ""
        await until(run, lambda: said(run, "/metrics works again"))
