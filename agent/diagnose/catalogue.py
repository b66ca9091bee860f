"""The fault catalogue: ``rules/faults/*.yaml`` in, checked entries out.

One file is one class. Reading is strict: an unknown key, a missing one, a pattern that RE2 does not take, a
fact or an action that nobody knows raises :class:`ConfigError` with file and line, because a signature that
silently never matches is worse than none. Never here: matching (``scan``), judging (``conclude``). YAML is
composed into nodes rather than loaded, since only nodes know their lines.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from string import Formatter
from typing import Literal, TypeVar

import msgspec
import re2
import yaml

from agent.errors import ConfigError
from agent.model import Confidence, Domain, Mechanism, Mode, Retry, Severity

Role = Literal["initiating", "cascade", "teardown"]
Phase = Literal["start", "load", "warmup", "cudagraph", "serving", "unknown"]
Level = Literal["debug", "info", "warning", "error", "none"]
Family = Literal["memory", "cache", "occupancy", "assembler", "port", "process", "none"]

# The facts that each family's module can fill into a summary or a change.
FAMILY_FACTS: dict[str, frozenset[str]] = {
    "memory": frozenset(
        (
            *("gpu", "requested", "total", "free", "process", "allocated", "reserved", "others"),
            *("neighbour_pid", "neighbour_name", "neighbour_bytes", "dummy_requests", "fitting_utilization"),
            *("tokens", "sequences", "half_tokens", "half_sequences"),
        )
    ),
    "cache": frozenset(("max_model_len", "needed", "available", "estimated_max_model_len", "token_capacity")),
    "occupancy": frozenset(("device", "free", "total", "utilization", "desired", "missing", "fitting_utilization")),
    "assembler": frozenset(("arch", "path")),
    "port": frozenset(("address", "port")),
    "process": frozenset(("process", "exit_code", "signal", "oom_kills", "exception")),
    "none": frozenset(),
}
COMMON_FACTS = frozenset(("message",))


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that stands in a fault file."""


class Signature(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that points to the fault.

    ``role``: initiating = the fault's own words; cascade = what it causes; teardown = exit noise. It counts
    only on lines of the given ``levels`` (``none`` = the line has no level, as in a traceback printed bare)
    and, where ``phases`` is given, in those phases of the server's life. ``fatal``: the server cannot go on
    serving. ``source`` says who prints it: a file of vLLM, torch, the kernel, or a public report. ``needs``:
    one of these patterns must be somewhere in the log too; ``unless``: none of these may. ``traceback``: a
    place in a traceback, which counts only while no exception is named. ``quotes``: the line names the
    exception of another process.
    """

    pattern: str
    role: Role
    source: str
    confidence: Confidence = Confidence.LIKELY
    severity: Severity | None = None
    phases: tuple[Phase, ...] = ()
    levels: tuple[Level, ...] = ("error", "none")
    fatal: bool = False
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    traceback: bool = False
    quotes: bool = False

    @property
    def settled(self) -> bool:
        """Whether the line alone says what it says; else the whole log must agree first."""
        return self.confidence is not Confidence.POSSIBLE and not self.needs and not self.traceback


class Conditions(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold beside a signature: none of the ``unless`` patterns in the log; not before/after
    ready."""

    unless: tuple[str, ...] = ()
    before_ready: bool = False


class RemedyTemplate(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A remedy with ``{facts}`` in ``change``; left out where a fact is unknown or the mechanism is
    another."""

    action: str
    change: str
    mode: Mode
    why: str
    undo: str
    mechanisms: tuple[Mechanism, ...] = ()


class Fault(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"fault": "class"}):
    """One class of the catalogue. ``summary`` is a list of sentences; one with an unknown fact is left
    out."""

    fault: str
    title: str
    severity: Severity
    domain: Domain
    retry: Retry
    family: Family
    signatures: tuple[Signature, ...]
    summary: tuple[str, ...]
    facts: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    explains: tuple[str, ...] = ()
    remedies: tuple[RemedyTemplate, ...] = ()
    runbook: str | None = None


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All faults by class, in the order of their file names."""

    faults: tuple[Fault, ...]

    def get(self, fault: str) -> Fault | None:
        """The entry of a class, None where the catalogue does not hold it."""
        return next((entry for entry in self.faults if entry.fault == fault), None)


def shipped_folder() -> Path:
    """``agent/_data/rules/faults`` of the wheel, else ``rules/faults`` of the checkout."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_data" / "rules" / "faults"
    return packed if packed.is_dir() else package.parent / "rules" / "faults"


def load_catalogue(folder: Path | None = None) -> Catalogue:
    """Read every ``*.yaml`` of ``folder`` (None: the shipped catalogue). Raises ConfigError."""
    place = folder or shipped_folder()
    try:
        files = sorted(place.glob("*.yaml"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error}", where=str(place)) from error
    if not files:
        raise ConfigError(
            "holds no fault files (*.yaml)",
            where=str(place),
            remedy="name the folder that holds <class>.yaml",
        )
    faults = [_read(file) for file in files]
    _check_names(faults, files)
    return Catalogue(faults=tuple(faults))


def _check_names(faults: Sequence[Fault], files: Sequence[Path]) -> None:
    known = {entry.fault for entry in faults}
    for entry, file in zip(faults, files, strict=True):
        if entry.fault != file.stem:
            raise ConfigError(
                f"class {entry.fault!r} stands in a file of another name",
                where=f"{file}:1",
                remedy=f"rename the file to {entry.fault}.yaml",
            )
        for name in entry.explains:
            if name not in known:
                raise ConfigError(
                    f"explains {name!r}, which is no class of this catalogue{_nearest(name, known)}",
                    where=f"{file}:{_key_line(file, 'explains')}",
                    remedy="name a class that has a file here",
                )


def _key_line(file: Path, key: str) -> int:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.startswith(f"{key}:")), 1)


def _nearest(name: str, known: frozenset[str] | set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


T = TypeVar("T", bound=_Entry)


def _read(file: Path) -> Fault:
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"is not YAML: {problem}", where=f"{file}:{line}", remedy="correct the file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(file), remedy="make it readable UTF-8") from error
    return _Reader(file).fault(node)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Reader:
    """Turns the nodes of one file into entries, with the line of whatever is wrong."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def fail(self, node: yaml.Node | None, message: str, remedy: str) -> ConfigError:
        line = node.start_mark.line + 1 if node is not None else 1
        return ConfigError(message, where=f"{self._file}:{line}", remedy=remedy)

    def fault(self, node: yaml.Node | None) -> Fault:
        fields = self._mapping(node, Fault)
        plain: dict[str, object] = {}
        for key, value in fields.items():
            if key == "signatures":
                plain[key] = [self._struct(item, Signature) for item in self._list(value)]
            elif key == "remedies":
                plain[key] = [self._struct(item, RemedyTemplate) for item in self._list(value)]
            elif key == "conditions":
                plain[key] = self._struct(value, Conditions)
            else:
                plain[key] = _plain(value)
        entry = self._convert(node, plain, Fault, fields)
        self._check(entry, fields)
        return entry

    def _struct(self, node: yaml.Node, kind: type[T]) -> T:
        fields = self._mapping(node, kind)
        return self._convert(node, {key: _plain(value) for key, value in fields.items()}, kind, fields)

    def _convert(
        self, node: yaml.Node | None, plain: dict[str, object], kind: type[T], fields: dict[str, yaml.Node]
    ) -> T:
        try:
            return msgspec.convert(plain, kind)
        except msgspec.ValidationError as error:
            text = str(error)
            key = text.partition("`$.")[2].split("`")[0].split("[")[0].split(".")[0]
            raise self.fail(fields.get(key, node), text, "correct the value, or see `agent schema fault`") from error

    def _mapping(self, node: yaml.Node | None, kind: type[_Entry]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, "a mapping is expected here", "write `key: value` lines")
        known = set(kind.__struct_encode_fields__)
        fields: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = str(key_node.value)
            if key not in known:
                raise self.fail(key_node, f"unknown key {key!r}{_nearest(key, known)}", "correct or remove it")
            if key in fields:
                raise self.fail(key_node, f"key {key!r} is given twice", "keep one")
            fields[key] = value
        return fields

    def _list(self, node: yaml.Node) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.fail(node, "a list is expected here", "write `- ` before each item")
        return list(node.value)

    def _check(self, entry: Fault, fields: dict[str, yaml.Node]) -> None:
        signatures = self._list(fields["signatures"])
        for signature, node in zip(entry.signatures, signatures, strict=True):
            for pattern in (signature.pattern, *signature.needs, *signature.unless):
                self._pattern(pattern, node)
        for pattern in entry.conditions.unless:
            self._pattern(pattern, fields["conditions"])
        known = FAMILY_FACTS[entry.family] | COMMON_FACTS
        for name in entry.facts:
            self._fact(name, known, fields["facts"])
        for text in entry.summary:
            self._template(text, known, fields["summary"])
        for remedy, node in zip(entry.remedies, self._list(fields["remedies"]) if entry.remedies else (), strict=True):
            self._template(remedy.change, known, node)
            self._template(remedy.why, known, node)

    def _pattern(self, pattern: str, node: yaml.Node) -> None:
        options = re2.Options()
        options.log_errors = False
        try:
            re2.compile(pattern, options)
        except re2.error as error:
            raise self.fail(
                node,
                f"pattern {pattern!r} is not a regular expression of RE2: {error}",
                "correct the pattern",
            ) from error

    def _template(self, text: str, known: frozenset[str], node: yaml.Node) -> None:
        try:
            names = [name for _, name, _, _ in Formatter().parse(text) if name]
        except ValueError as error:
            raise self.fail(node, f"{text!r} is not a template: {error}", "double a literal brace") from error
        for name in names:
            self._fact(name, known, node)

    def _fact(self, name: str, known: frozenset[str], node: yaml.Node) -> None:
        if name not in known:
            raise self.fail(
                node,
                f"unknown fact {name!r}{_nearest(name, known)}",
                f"use one of {', '.join(sorted(known))}",
            )


def _plain(node: yaml.Node) -> object:
    """Plain values of a node: only ``true``/``false`` are booleans, so the mode ``off`` stays a word."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if node.tag == "tag:yaml.org,2002:bool" and node.value in ("true", "false"):
        return node.value == "true"
    if node.tag == "tag:yaml.org,2002:null":
        return None
    return node.value
