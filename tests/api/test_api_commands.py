"""The commands that speak to a watcher, and what they do when none answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from agent.cli import main
from agent.journal import Journal
from agent.model import ActionState, Evidence, IncidentState
from agent.serve import Api
from tests.api.conftest import MemoryBackend
from tests.journal.builders import action, incident

Run = Callable[..., Awaitable[tuple[int, str, str]]]
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    for name in ("VLLM_AGENT_RUN_DIR", "VLLM_AGENT_TOKEN_FILE", "VLLM_AGENT_API", "VLLM_AGENT__STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # never used for the watcher

    async def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [str(one) for one in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.fixture
def at(api: Api) -> str:
    return f"--api=http://127.0.0.1:{api.port}"


@pytest.fixture
async def web_page() -> AsyncIterator[str]:
    """Something that is not the agent."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>hello</html>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"--api=http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_incidents_are_listed(run: Run, at: str) -> None:
    code, out, _ = await run("incidents", at)
    assert code == 0 and out.splitlines()[0].split()[:3] == ["ID", "OPENED", "STATE"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["i-1", "i-2"]
    code, out, _ = await run("incidents", at, "--output", "json", "--limit", "1")
    assert [one["class"] for one in json.loads(out)["incidents"]] == ["oom-serving"]
    code, out, _ = await run("incidents", at, "--state", "resolved")
    assert (code, out) == (0, "no incidents\n")
    code, out, _ = await run("incidents", at, "--state", "resolved", "--output", "json")
    assert json.loads(out) == {"incidents": []}


async def test_an_incident_says_what_to_do(run: Run, at: str) -> None:
    code, out, _ = await run("incident", "i-1", at)
    assert code == 0
    for words in (
        "OPEN  oom-serving",
        "a.log:7: OutOfMemoryError",
        "why     64 sequences",
        "agent approve a-1",
    ):
        assert words in out
    code, out, _ = await run("incident", "i-1", at, "--output", "json")
    assert json.loads(out)["actions"][1]["id"] == "a-1"


async def test_a_log_line_cannot_paint_the_terminal(run: Run, at: str, backend: MemoryBackend) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 ok\u202e"
    backend.known["i-3"] = incident("i-3", summary=evil, evidence=(Evidence(source="log", where="a", text=evil),))
    for command in (("incident", "i-3"), ("incidents",)):
        _, out, _ = await run(*command, at)
        assert "ok" in out and not set("\x1b\x07\u202e") & set(out)


async def test_decisions_reach_the_watcher(run: Run, at: str, run_dir: Path, backend: MemoryBackend) -> None:
    code, out, _ = await run("approve", "a-1", at, "--run-dir", run_dir)
    assert code == 0 and "approved a-1" in out and "agent incident i-1" in out
    code, out, _ = await run("deny", "i-1", at, "--run-dir", run_dir, "--output", "json")
    assert json.loads(out)["state"] == "denied"
    code, out, _ = await run("breaker", "reset", at, "--run-dir", run_dir)
    assert (code, out) == (0, "closed: chat\n")
    assert [told for told, _ in backend.told] == ["approved a-1", "denied a-1", "reset None"]
    assert all(actor.startswith("cli:") for _, actor in backend.told)


async def test_the_token_is_found_in_the_environment(
    run: Run, at: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await run("approve", "a-1", at))[0] == 1
    monkeypatch.setenv("VLLM_AGENT_RUN_DIR", str(run_dir))
    assert (await run("approve", "a-1", at))[0] == 0
    monkeypatch.setenv("VLLM_AGENT_RUN_DIR", str(run_dir / "none"))
    code, _, err = await run("approve", "a-1", at)
    assert code == 64 and "token cannot be read" in err
    monkeypatch.setenv("VLLM_AGENT_TOKEN_FILE", str(run_dir / "token"))
    assert (await run("approve", "a-1", at))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("approve", "a-0"), 1, "a-0 is failed"),
        (("approve", "a-9"), 1, "no action a-9"),
        (("approve", "i-2"), 64, "0 actions that wait"),
        (("incident", "i-9"), 1, "no incident of that id"),
        (("incident", "../../x?y#z"), 1, "no incident of that id"),
        (("approve",), 64, "Missing argument"),
        (("incidents", "--state", "odd"), 64, "odd"),
        (("incidents", "--limit", "0"), 64, "0"),
    ],
)
async def test_what_cannot_be_done_is_said(
    run: Run, at: str, run_dir: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    more = ("--run-dir", run_dir) if arguments[0] == "approve" else ()
    found, _, err = await run(*arguments, at, *more)
    assert found == code and words in err


async def test_a_wrong_token_is_refused(run: Run, at: str, run_dir: Path, backend: MemoryBackend) -> None:
    (run_dir / "token").write_text("wrong\n")
    code, _, err = await run("approve", "a-1", at, "--run-dir", run_dir)
    assert code == 1 and "token is missing or wrong" in err and backend.told == []
    (run_dir / "token").write_text("")
    assert (await run("approve", "a-1", at, "--run-dir", run_dir))[0] == 64


async def test_what_is_not_the_agent_is_named(run: Run, web_page: str, run_dir: Path) -> None:
    for command in (("incidents",), ("incident", "i-1"), ("approve", "a-1", "--run-dir", run_dir)):
        code, _, err = await run(*command, web_page)
        assert code == 1 and "not the agent's API" in err
    assert (await run("incidents", "--api", "localhost:9911"))[0] == 64


async def test_without_a_watcher_the_journal_is_read(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Journal.open(state) as journal:
        waiting = action("a-1", state=ActionState.AWAITING_APPROVAL)
        journal.save_incident(incident("i-1", IncidentState.AWAITING_APPROVAL, actions=(waiting,)))
        journal.save_incident(incident("i-2", IncidentState.RESOLVED))
    code, out, err = await run("incidents", "--api", NOBODY, "--state-dir", state, "--state", "resolved")
    assert code == 0 and "i-2" in out and "i-1" not in out and "this is the journal" in err
    code, out, err = await run("incident", "i-1", "--api", NOBODY, "--state-dir", state, "--output", "json")
    assert json.loads(out)["id"] == "i-1" and "this is the journal" in err
    code, _, err = await run("incident", "i-9", "--api", NOBODY, "--state-dir", state)
    assert code == 1 and "no incident i-9" in err
    code, _, err = await run("incidents", "--api", NOBODY, "--state-dir", tmp_path / "none")
    assert code == 1 and "no watcher answers" in err and "no journal here" in err


async def test_without_a_watcher_decisions_are_refused(run: Run, run_dir: Path) -> None:
    for command in (("approve", "a-1"), ("deny", "a-1"), ("breaker", "reset")):
        code, _, err = await run(*command, "--api", NOBODY, "--run-dir", run_dir)
        assert code == 1 and "no watcher answers" in err and "remedy" in err


async def test_freezing_works_with_and_without_a_watcher(
    run: Run, at: str, run_dir: Path, backend: MemoryBackend
) -> None:
    assert (await run("freeze", at, "--run-dir", run_dir))[0] == 0
    assert (run_dir / "freeze").exists() and backend.told[0][0] == "freeze"
    assert (await run("thaw", at, "--run-dir", run_dir))[0] == 0
    assert not (run_dir / "freeze").exists() and backend.told[1][0] == "thaw"
    code, _, err = await run("freeze", "--api", NOBODY, "--run-dir", run_dir)
    assert code == 0 and (run_dir / "freeze").exists() and "no watcher answers" in err
    code, _, err = await run("thaw", "--api", NOBODY, "--run-dir", run_dir)
    assert code == 0 and not (run_dir / "freeze").exists()
    code, _, err = await run("freeze", "--api", NOBODY)
    assert code == 1 and "no watcher answers" in err


async def test_freezing_without_a_readable_token_still_freezes(run: Run, at: str, tmp_path: Path) -> None:
    folder = tmp_path / "tokenless"
    folder.mkdir()
    code, _, err = await run("freeze", at, "--run-dir", folder)
    assert code == 0 and (folder / "freeze").exists() and "token" in err
    code, _, err = await run("freeze", at, "--run-dir", tmp_path / "none")
    assert code == 1 and "none/freeze" in err


async def test_alerts_are_listed_and_rules_that_say_nothing_are_counted(
    run: Run, at: str, backend: MemoryBackend
) -> None:
    backend.silent = "no GPU of the server is read here"
    code, out, _ = await run("alerts", at)
    assert code == 0 and "firing  warning   VLLMQueueLong  chat    2026-01-01T00:01:00Z  12 wait" in out
    assert "1 rules say nothing" in out
    code, out, _ = await run("alerts", at, "--unknown")
    assert "unknown  VLLMGpuLost on the agent: no GPU of the server is read here" in out
    code, out, _ = await run("alerts", at, "--output", "json")
    assert [one["server"] for one in json.loads(out)["alerts"]] == ["chat"]
