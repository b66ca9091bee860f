"""The pages and the code name the same things: metrics, states, routes, verbs, actions, classes, limits, words."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest
from aiohttp import web

from agent.config import ACTIONS, configuration_schema
from agent.diagnose import FAIL_ON, OUTPUTS, load_catalogue
from agent.launch import ALLOWED_ENV, ALLOWED_FLAGS
from agent.launch.allow import FlagRule
from agent.launch.judge import VERDICT_STATES, Answer, Facts, Opinion, judge
from agent.model import (
    ActionState,
    Confidence,
    Domain,
    IncidentState,
    Mechanism,
    Mode,
    Retry,
    Severity,
    State,
    SystemClock,
)
from agent.series import own_metrics
from agent.serve import AgentMetrics
from tests.documentation import faults_page, metrics_page
from tests.documentation.pages import PAGES, ROOT, code, read, rows

SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "agent").rglob("*.py")}
CODE = "\n".join(SOURCES.values())


def values(*kinds: type) -> set[str]:
    return {one.value for kind in kinds for one in kind}  # type: ignore[attr-defined]


# -- metrics ---------------------------------------------------------------------------------------------


def test_the_page_of_metrics_is_current() -> None:
    remedy = "run `python -m tests.documentation.metrics_page > docs/metrics.md`"
    assert read("metrics.md") == metrics_page.page(), remedy


def test_the_page_of_metrics_has_every_series_with_its_type_and_labels() -> None:
    written = {
        code(name)[0]: (kind, tuple(code(labels))) for name, kind, _, labels, _ in rows(read("metrics.md"), "name")
    }
    assert written == {one.name: (one.type, one.labels) for one in own_metrics().values()}


def test_metrics_named_elsewhere_exist() -> None:
    suffixes = ("", "_bucket", "_sum", "_count")
    known = {one.name + suffix for one in own_metrics().values() for suffix in suffixes}
    for page in PAGES:
        for name in re.findall(r"vllm_agent_[a-z_]+", page.read_text(encoding="utf-8")):
            assert name in known | {"vllm_agent_"}, f"{page.name}: {name}"


def test_the_outcomes_of_actions_are_the_final_states() -> None:
    row = next(cells for cells in rows(read("metrics.md"), "name") if "actions_total" in cells[0])
    assert set(code(row[4])) == {state.value for state in ActionState if state.final}


# -- probes ----------------------------------------------------------------------------------------------

NOW = 1000.0


def judged(state: str, acting: bool) -> Answer:
    """The answer of a running, ready server whose watcher just said so."""
    return judge(Facts(now=NOW, started=NOW - 60, ready=True, opinion=Opinion(state, "", acting, NOW - 1)))


@pytest.mark.parametrize("cells", rows(read("probes.md"), "state"), ids=lambda cells: cells[0])
def test_the_table_of_probes_is_what_the_launcher_answers(cells: list[str]) -> None:
    answer = judged(code(cells[0])[0], acting="action runs" in cells[0])
    ready = {True: "200", False: "503", None: "vLLM's `/health`"}[answer.ready]
    assert (("200" if answer.live else "503"), ready) == (cells[1], cells[2])


def test_the_table_of_probes_is_whole() -> None:
    names = {code(cells[0])[0] for cells in rows(read("probes.md"), "state")}
    assert names == VERDICT_STATES
    assert values(State) <= names


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"started": None, "breaker_open": True}, "dead"),
        ({"started": None, "frozen": True}, "dead"),
        ({"started": None, "held": True}, "repairing"),
        ({"started": None, "restarting": True}, "repairing"),
        ({"started": None, "stopping": "stop"}, "stopped"),
        ({"started": NOW - 5, "stopping": "stop"}, "draining"),
        ({"started": NOW - 5, "ready": False}, "starting"),
        ({"started": NOW - 60, "ready": True}, "unknown"),
        ({"started": NOW - 60, "ready": True, "opinion": Opinion("stalled", "", False, NOW - 11)}, "unknown"),
    ],
)
def test_what_the_launcher_knows_by_itself(facts: dict[str, object], state: str) -> None:
    answer = judge(Facts(**{"now": NOW, "ready": False, **facts}))  # type: ignore[arg-type]
    assert answer.state == state
    row = next(cells for cells in rows(read("probes.md"), "state") if cells[0] == f"`{state}`")
    assert row[1] == ("200" if answer.live else "503")
    assert row[2] == {True: "200", False: "503", None: "vLLM's `/health`"}[answer.ready]


# -- interfaces ------------------------------------------------------------------------------------------


class _Router:
    """Collects the routes that the API registers."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def add_get(self, path: str, handler: object) -> None:
        self.found.add(f"GET {path}")

    def add_post(self, path: str, handler: object) -> None:
        self.found.add(f"POST {path}")


async def test_the_page_of_the_api_has_every_route(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.serve import start_api

    router = _Router()
    monkeypatch.setattr(web.Application, "router", property(lambda self: router))
    monkeypatch.setattr(web.AppRunner, "setup", _nothing)
    with pytest.raises(Exception):  # noqa: B017 (no server was set up)
        await start_api(None, "127.0.0.1:0", lambda: None, AgentMetrics(SystemClock()))  # type: ignore[arg-type]
    assert {code(cells[0])[0] for cells in rows(read("api.md"), "request")} == router.found


async def _nothing(self: object) -> None:
    return None


def schema(name: str) -> dict[str, object]:
    text = (resources.files("agent") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text)
    return found


def test_the_page_of_the_api_has_every_verb_with_its_arguments() -> None:
    requests = schema("verbs")["$defs"]["request"]["oneOf"]  # type: ignore[index]
    known = {one["properties"]["verb"]["const"]: set(one["properties"]["args"]["properties"]) for one in requests}
    written = {
        verb: {word.rstrip("?") for word in code(cells[1])}
        for cells in rows(read("api.md"), "verb")
        for verb in code(cells[0])
    }
    assert written == known


def test_error_codes_and_events_of_the_socket_are_those_of_the_code() -> None:
    launch = "\n".join(text for path, text in SOURCES.items() if path.parent.name == "launch")
    codes = set(re.findall(r'code="([a-z-]+)"', launch))
    text = read("api.md")
    named = set(code(text[text.index("Error codes:") : text.index("## Files of the run-dir")]))
    assert codes - named == set()
    assert named - codes - {"bash -c"} == set()
    row = next(cells for cells in rows(text, "verb") if cells[0] == "`events`")
    assert set(code(row[2])) == set(re.findall(r'events\.add\(\s*"([a-z-]+)"', launch))


def test_every_schema_is_published_and_described() -> None:
    files = (entry.name for entry in (resources.files("agent") / "schemas").iterdir())
    published = {name.removesuffix(".schema.json") for name in files if name.endswith(".schema.json")}
    assert {name for cells in rows(read("api.md"), "name") for name in code(cells[0])} == published


def test_variables_of_the_environment_are_read_by_the_code() -> None:
    for page in PAGES:
        for name in re.findall(r"\bVLLM_AGENT_[A-Z_]+\b", page.read_text(encoding="utf-8")):
            if not name.startswith("VLLM_AGENT__"):
                assert name in CODE, f"{page.name}: {name}"


def test_keys_of_the_configuration_exist() -> None:
    keys = {code(cells[0])[0] for cells in rows(read("configuration.md"), "key")}
    heads = {key.split(".")[0].removesuffix("[]") for key in keys if "." in key}
    for page in PAGES:
        for word in code(page.read_text(encoding="utf-8")):
            if re.fullmatch(r"[a-z_]+(\[\])?(\.[a-z_]+)+", word) and word.split(".")[0].removesuffix("[]") in heads:
                assert word in keys, f"{page.name}: {word}"
    assert "$defs" in configuration_schema()


def test_the_options_of_diagnose_are_those_of_the_code() -> None:
    text = read("diagnose.md").replace("\\|", "|")
    assert f"--output {'|'.join(OUTPUTS)}" in text
    assert f"--fail-on {'|'.join(FAIL_ON)}" in text


# -- faults, actions, security ---------------------------------------------------------------------------


def test_the_page_of_faults_is_current() -> None:
    remedy = "run `python -m tests.documentation.faults_page > docs/faults.md`"
    assert read("faults.md") == faults_page.page(), remedy


@pytest.mark.parametrize("fault", load_catalogue().faults, ids=lambda fault: fault.fault)
def test_a_remedy_that_the_catalogue_promises_is_one_that_the_planner_offers(fault: object) -> None:
    """`agent diagnose` prints the mode beside a remedy; "auto" or "approve" must not be an empty promise."""
    entry = load_catalogue().get(fault.fault)  # type: ignore[attr-defined]
    assert entry is not None
    for remedy in entry.remedies:
        if remedy.mode in (Mode.AUTO, Mode.APPROVE):
            where = remedy.mechanisms or (None,)
            for mechanism in where:
                offered = {(it.action, it.mode) for it in faults_page.tried(entry, mechanism)}
                assert (remedy.action, remedy.mode) in offered, f"{remedy.action}, mechanism {mechanism}"


def test_what_the_planner_offers_stands_in_the_table_of_actions() -> None:
    for fault in load_catalogue().faults:
        for mechanism in faults_page.mechanisms_of(fault):
            assert {it.action for it in faults_page.tried(fault, mechanism)} <= {policy.name for policy in ACTIONS}


def test_classes_and_actions_that_a_page_names_exist() -> None:
    catalogue = load_catalogue().faults
    known = {policy.name for policy in ACTIONS} | {it.fault for it in catalogue}
    known |= {remedy.action for it in catalogue for remedy in it.remedies}
    pattern = re.compile(r"(?:oom|kv|kv-cache|ptxas|engine|port|host|triton|wait-for|gpu-memory)-[a-z-]+")
    faults_of_the_stand_in = {"oom-above=8"}
    for page in PAGES:
        for word in code(page.read_text(encoding="utf-8")):
            if pattern.fullmatch(word) and word not in faults_of_the_stand_in:
                assert word in known, f"{page.name}: {word}"


def test_the_allow_list_of_the_page_is_the_launchers() -> None:
    text = read("security.md")
    flags = {name: cells[1] for cells in rows(text, "flag of vLLM") for name in code(cells[0])}
    assert set(flags) == set(ALLOWED_FLAGS)
    for name, rule in ALLOWED_FLAGS.items():
        assert flags[name] == _bounds(rule)
    assert {name for cells in rows(text, "variable") for name in code(cells[0])} == set(ALLOWED_ENV)


def _bounds(rule: FlagRule) -> str:
    if rule.kind == "switch":
        return "no value"
    most = "2^50" if rule.maximum == 2**50 else rule.maximum
    return f"{rule.minimum} to {most}"


def test_the_glossary_has_the_values_of_the_code() -> None:
    words = {cells[0]: cells[1] for cells in rows(read("glossary.md"), "word")}
    for word, kind in (
        ("mechanism", Mechanism),
        ("mode", Mode),
        ("confidence", Confidence),
        ("domain", Domain),
        ("retry outlook", Retry),
        ("severity", Severity),
    ):
        assert set(re.findall(r"\*([a-z-]+)\*", words[word])) == values(kind), word
    assert all(state in words["incident"] for state in values(IncidentState))
    assert set(re.findall(r"\*([a-z-]+)\*", words["proof"])) == {
        "serving",
        "request-answered",
        "metric-advanced",
        "log-line-absent",
    }
    assert set(re.findall(r"\*([a-z]+)\*", words["causal role"])) == {"initiating", "cascade", "teardown"}


# -- the code's own words --------------------------------------------------------------------------------


def test_the_code_names_no_machine_and_leaves_no_note_to_itself() -> None:
    for path, text in SOURCES.items():
        assert not re.search(r"\b(?:TODO|FIXME|XXX|HACK)\b", text), path
        assert not re.search(r"/(?:work|Users)/|/home/(?!u/)[a-z]|/root/", text), path


def test_pages_that_docstrings_name_exist() -> None:
    for path, text in SOURCES.items():
        for name in re.findall(r"docs/([\w-]+\.md)", text):
            assert (ROOT / "docs" / name).is_file(), f"{path}: {name}"


def test_every_module_says_what_it_is_for() -> None:
    bare = [path for path, text in SOURCES.items() if not re.match(r'\s*"""', text)]
    assert not bare
