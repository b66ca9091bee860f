"""Every command line of the pages is one that exists, and those marked `sh run` really run, on the stand-in.

The blocks of the quickstart but its last ("Stop"), then those of the other pages, then that last one, make one shell
script; ports and folders are the test's own. Blocks marked ``text example=FILE`` show what that script printed into
FILE, so they are held to it with numbers, times and ids left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from agent.cli import COMMANDS, cli
from agent.config import load
from agent.launch.cli import _parser as launch_parser
from agent.launch.cli import parse as parse_launch
from tests.documentation.pages import PAGES, ROOT, Block, blocks, code, prose
from tests.support.processes import free_port

ALL = [block for page in PAGES for block in blocks(page)]
RUNNABLE = [block for block in ALL if block.info == "sh run"]
EXAMPLES = [block for block in ALL if block.info.startswith("text example=")]
PORTS = ("8000", "8001", "9911", "9912")


def command_lines() -> list[tuple[str, list[str]]]:
    """(where, words) of every call of the agent in a block of commands."""
    found = []
    for block in ALL:
        if block.info.split(" ")[0] not in ("sh", "ini", ""):
            continue
        for number, line in enumerate(block.body.replace("\\\n", " ").splitlines(), block.line + 1):
            for call in re.findall(r"(?:^|[\s/;|(]|ExecStart=\S*/)agent ((?:[a-z]|--).*)", line.split(" #")[0]):
                text = re.split(r" [>|&;]|\)$| 2>| \$\(", call)[0]
                found.append((f"{block.page}:{number}", shlex.split(text, posix=True)))
    return found


@pytest.mark.parametrize(("where", "words"), command_lines(), ids=lambda value: value if isinstance(value, str) else "")
def test_commands_and_options_exist(where: str, words: list[str]) -> None:
    name, rest = words[0], words[1:]
    own = rest[: rest.index("--")] if "--" in rest else rest
    options = {word.partition("=")[0] for word in own if word.startswith("-") and word != "-"}
    if name == "launch":
        assert options <= set(launch_parser()._option_string_actions)
    elif name != "sim":
        assert name in COMMANDS, f"agent {name}"
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), own[0])
        assert command is not None
        assert options <= {text for option in command.params for text in option.opts}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_options_named_in_prose_are_known_to_the_code(page: Path) -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "agent").rglob("*.py"))
    catalogue = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").rglob("*.yaml"))
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(code(prose(page)))):
        word = option[2:].replace("-", "[-_]")  # vLLM's own flags are read from its log by their Python names
        assert re.search(rf"(?<!\w){word}(?![\w-])", sources + catalogue), f"{page.name}: {option}"


def test_every_command_is_explained_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in (*COMMANDS, "launch", "sim"):
        assert f"agent {name}" in text


def script(ports: dict[str, str]) -> str:
    """One shell script of all runnable blocks, each announced on standard error."""
    first = [block for block in RUNNABLE if block.page == "quickstart.md"]
    others = [block for block in RUNNABLE if block.page != "quickstart.md"]
    keep = Block("how-it-works.md", 0, "", "agent incident $(agent incidents | grep -o 'i-[0-9a-z]*') > incident.txt\n")
    lines = ["set -eu"]
    for block in (*first[:-1], keep, *others, first[-1]):
        lines += [f"echo '=== {block.page}:{block.line}' >&2", block.body]
    return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[0]], "\n".join(lines))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands of all pages have run."""
    folder = tmp_path_factory.mktemp("pages")
    tools = folder / "bin"
    tools.mkdir()
    agent = tools / "agent"
    agent.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m agent "$@"\n', encoding="utf-8")
    agent.chmod(0o755)
    ports = {port: str(free_port()) for port in PORTS}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "SLACK_"))}
    environment |= {
        "PATH": f"{tools}{os.pathsep}{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "VLLM_AGENT__LISTEN": f"127.0.0.1:{ports['9911']}",
        "VLLM_AGENT_API": f"http://127.0.0.1:{ports['9911']}",
        "no_proxy": "*",
    }
    text = script(ports).replace("agent run -- ", f"agent run --probe 127.0.0.1:{ports['9912']} -- ")
    # A job of its own, so that whatever a failing page leaves behind can be ended with it.
    work = folder / "work"
    work.mkdir()
    process = subprocess.Popen(
        ["bash", "-c", text],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=(folder / "stdout").open("wb"),
        stderr=(folder / "stderr").open("wb"),
        start_new_session=True,
    )
    try:
        code = process.wait(100)
    finally:
        _end(process)
    ends = [(folder / name).read_text(encoding="utf-8", errors="replace")[-3000:] for name in ("stdout", "stderr")]
    assert code == 0, f"exit {code}\n" + "\n".join(ends)
    return work


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, 15)
    except ProcessLookupError:
        return
    process.wait(30)


@pytest.mark.timeout(150)
def test_the_commands_of_the_pages_run(ran: Path) -> None:
    assert (ran / "state" / "journal.db").is_file(), "the environment's state folder did not reach the watcher"
    assert (ran / "chat" / "exits.jsonl").read_text().count("\n") == 2, "the death and the asked stop"
    assert "200" in (ran.parent / "stdout").read_text()


def test_examples_of_json_are_json_and_the_probe_has_the_keys_it_really_has(ran: Path) -> None:
    shown = [json.loads(line) for block in ALL if block.info == "json" for line in block.body.splitlines()]
    printed = next(line for line in (ran.parent / "stdout").read_text().splitlines() if line.startswith('{"state"'))
    assert list(json.loads(printed)) in [list(one) for one in shown]


@pytest.mark.parametrize("block", [it for it in ALL if it.info == "yaml"], ids=lambda it: f"{it.page}:{it.line}")
def test_examples_of_yaml_are_what_their_readers_take(block: Block, tmp_path: Path) -> None:
    if block.body.startswith("containers:"):
        containers = yaml.safe_load(block.body)["containers"]
        own = containers[0]["command"]
        assert parse_launch([*own[own.index("launch") + 1 : own.index("--")], "--", "true"]).probe == ("0.0.0.0", 9912)
        probes = (containers[0]["livenessProbe"], containers[0]["readinessProbe"])
        assert [probe["httpGet"]["path"] for probe in probes] == ["/livez", "/readyz"]
        return
    file = tmp_path / "agent.yaml"
    file.write_text(block.body, encoding="utf-8")
    load(file, {})


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"\b([ia])-[0-9a-z]{10,}", r"\1-#", line.strip())
    line = re.sub(r"\b(before|after) the exit\b", "around the exit", line)
    line = re.sub(r"[0-9][0-9.:TZ,-]*", "#", line)
    return re.sub(r"# requests finished|no request arrived", "# requests finished", line)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.page)
def test_the_examples_are_what_the_commands_print(ran: Path, block: Block) -> None:
    file = block.info.partition("=")[2]
    printed = " ".join(plain((ran / file).read_text(encoding="utf-8")).split())
    for line in block.body.splitlines():
        assert " ".join(plain(line).split()) in printed, f"{block.page}: {line}"
