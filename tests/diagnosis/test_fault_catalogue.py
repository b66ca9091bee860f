"""The catalogue is strict, and the shipped one agrees with the rest of the project."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import re2
import yaml

import agent
from agent.config import default_modes
from agent.diagnose import load_catalogue
from agent.diagnose.catalogue import shipped_folder
from agent.diagnose.scan import Scanner
from agent.diagnose.schema import diagnosis_schema, fault_schema
from agent.errors import ConfigError
from tests.diagnosis.logs import CAPTURES, capture, catalogue

SCHEMAS = Path(agent.__file__).parent / "schemas"
WANTED = {
    *("oom-load", "oom-warmup", "oom-cudagraph", "oom-serving", "kv-cache-none", "kv-cache-too-small"),
    *("gpu-memory-occupied", "triton-ptxas", "engine-dead", "engine-hang", "host-oom-kill", "port-in-use"),
    *("config-invalid", "model-not-found"),
}
GOOD = """\
class: my-fault
title: A fault
severity: critical
domain: unknown
retry: may
family: cache
facts: [needed]
signatures:
  - pattern: 'it broke \\d+'
    role: initiating
    source: a test
summary:
  - 'It broke: {needed}.'
remedies:
  - action: restart
    change: 'again'
    mode: auto
    why: 'because'
    undo: none
"""


def write(folder: Path, text: str) -> Path:
    (folder / "my-fault.yaml").write_text(text)
    return folder


def test_a_good_file_loads(tmp_path: Path) -> None:
    assert load_catalogue(write(tmp_path, GOOD)).faults[0].fault == "my-fault"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("title: A", "titel: A", 2, "did you mean 'title'"),
        ("    role: initiating", "    roll: initiating", 10, "did you mean 'role'"),
        ("    role: initiating", "    role: first", 10, "Invalid enum value"),
        ("'it broke \\d+'", "'it (broke'", 9, "not a regular expression"),
        ("'it broke \\d+'", "'it (?!broke)'", 9, "not a regular expression"),
        ("    role: initiating", "    needs: ['(cut']\n    role: initiating", 9, "not a regular expression"),
        ("    role: initiating", "    unless: ['(cut']\n    role: initiating", 9, "not a regular expression"),
        ("facts: [needed]", "facts: [neded]", 7, "did you mean 'needed'"),
        ("{needed}", "{nedeed}", 13, "did you mean 'needed'"),
        ("{needed}", "{needed", 13, "not a template"),
        ("mode: auto", "mode: always", 17, "Invalid enum value"),
        ("severity: critical", "severity: loud", 3, "Invalid enum value"),
        ("retry: may\n", "retry: may\nretry: may\n", 6, "given twice"),
        ("signatures:\n", "signatures: oops\nconditions:\n", 8, "a list is expected"),
        ("class: my-fault", "class: [", 3, "is not YAML"),
        ("class: my-fault", "class: other", 1, "another name"),
        ("family: cache", "family: cache\nexplains: [nobody]", 7, "no class of this catalogue"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_catalogue(write(tmp_path, GOOD.replace(old, new, 1)))
    assert words in caught.value.message
    assert caught.value.where == f"{tmp_path / 'my-fault.yaml'}:{line}"
    assert caught.value.remedy


def test_a_folder_without_faults_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no fault files"):
        load_catalogue(tmp_path)


def test_the_shipped_catalogue_holds_the_classes() -> None:
    assert {entry.fault for entry in catalogue().faults} >= WANTED


def test_modes_are_those_of_the_table_of_actions() -> None:
    modes = default_modes()
    for entry in catalogue().faults:
        for remedy in entry.remedies:
            if remedy.action in modes and remedy.mode.value != "dry-run":
                assert remedy.mode is modes[remedy.action], (entry.fault, remedy.action)
            elif remedy.action not in modes:
                assert remedy.mode.value == "dry-run", f"{entry.fault}: {remedy.action} is nobody's action"


def test_every_signature_has_a_source_and_a_class_has_an_initiating_or_cascade_one() -> None:
    for entry in catalogue().faults:
        assert all(signature.source for signature in entry.signatures)
        assert {signature.role for signature in entry.signatures} - {"teardown"}


@pytest.mark.parametrize(("name", "made"), [("diagnosis", diagnosis_schema()), ("fault", fault_schema())])
def test_published_schemas_are_the_types(name: str, made: dict[str, object]) -> None:
    assert json.loads((SCHEMAS / f"{name}.schema.json").read_text()) == json.loads(json.dumps(made))


def test_shipped_files_hold_to_the_published_schema() -> None:
    for file in shipped_folder().glob("*.yaml"):
        jsonschema.validate(yaml.safe_load(file.read_text()), fault_schema())


def test_the_set_finds_what_each_pattern_finds_alone() -> None:
    # One automaton for all patterns: a state limit that is too small would silently match nothing.
    scanner = Scanner(catalogue())
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    alone = [re2.compile(slot.pattern.encode(), options) for slot in scanner.slots]
    for name in sorted(path.name for path in CAPTURES.glob("*fail*")):
        for line in capture(name).split(b"\n")[:400]:
            wanted = [number for number, pattern in enumerate(alone) if pattern.search(line)]
            assert sorted(scanner.matches(line)) == wanted


def test_texts_speak_of_the_project_alone() -> None:
    for file in shipped_folder().glob("*.yaml"):
        assert not re.search(r"/work/|shared/|issue \d", file.read_text()), file.name
