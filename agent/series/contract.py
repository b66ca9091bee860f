"""What a version of vLLM exports on ``/metrics``, and so what a missing series means.

In: the version (from the launcher's status, the log, or ``GET /version``) and the name that a selector asks for. Out:
whether a series that is not there means zero, a feature that is off, a name that this version does not have, or
nothing that we could know. It looks at no sample: what the scrape brought is the store's business.

The facts stand in ``contracts.yaml`` beside this file. They are read at the first question, once, in about 2 ms (every
scalar as text, which is why the parsing of versions and flags is done here).

vLLM does not say its version in the exposition; :func:`version_range` tells which releases would export what was seen.
With ``--disable-log-stats`` no ``vllm:`` family is exported at all: that shows as a scrape without any, not here.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from importlib import resources

import msgspec
import yaml

_Release = tuple[int, ...]
_TYPES = ("counter", "gauge", "histogram", "summary")
_VLLM = "vllm:"
_ENGINE_LABELS = "model_name engine"
# What samples of a type append to the family's name; ``_created`` is a gauge of its own in the text format.
_SUFFIXES = {
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "summary": ("_sum", "_count", "_created"),
    "gauge": (),
}


class PresenceKind(str, enum.Enum):
    """What it means that no series of a family was scraped."""

    EXPORTED = "exported"
    """It is there from the start: a scrape without it is broken, or was taken with the statistics off."""
    STARTS_EMPTY = "starts-empty"
    """No event yet: zero."""
    NEEDS_FEATURE = "needs-feature"
    """The flag or feature is off."""
    LACKING = "lacking"
    """This version has no such family."""
    UNCERTAIN = "uncertain"
    """The version is not known, or not in the tables."""
    FOREIGN = "foreign"
    """Not vLLM's: no opinion."""


class Presence(msgspec.Struct, frozen=True):
    """``reason`` is a sentence for people; empty for EXPORTED, STARTS_EMPTY and FOREIGN."""

    kind: PresenceKind
    reason: str = ""

    @property
    def is_zero(self) -> bool:
        """Whether a missing series of the family means zero."""
        return self.kind is PresenceKind.STARTS_EMPTY


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family as some releases export it.

    ``name`` is the name of its samples without ``_bucket`` and the like (a counter with ``_total``). ``labels`` is None
    where they are the fields of a configuration. ``since`` and ``until`` are its first and last release (None = the
    table's). ``zero_without``: its value is 0 and means "not measured" without this flag or feature. ``new`` are the
    names that took over. ``verified`` is false where ``rests_on`` is all there is.
    """

    name: str
    type: str
    labels: tuple[str, ...] | None
    since: str | None = None
    until: str | None = None
    empty: bool = False
    needs: str | None = None
    zero_without: str | None = None
    one_process: bool = False
    unit: str | None = None
    new: tuple[str, ...] = ()
    verified: bool = True
    rests_on: str | None = None

    def within(self, release: _Release) -> bool:
        """Whether that release exports it."""
        if self.since is not None and release < _release(self.since):
            return False
        if self.until is None:
            return True
        until = _release(self.until)
        return release[: len(until)] <= until


class Contract:
    """The families of one version. Build it with :func:`contract_for`."""

    def __init__(self, table: _Table, version: str | None, multiprocess: bool) -> None:
        self.version = version
        self.multiprocess = multiprocess
        self._table = table
        self._release = _parse(version)
        self._doubt = table.doubt(version, self._release)

    @property
    def known(self) -> bool:
        """Whether the version is in the tables."""
        return self._doubt is None

    def families(self) -> Mapping[str, Family]:
        """The families that this version can export, flags or not; of an unknown version, those of all."""
        found = {name: self._family(eras) for name, eras in self._table.families.items()}
        return {name: family for name, family in found.items() if family is not None}

    def family(self, name: str) -> Family | None:
        """The family that a sample of this name belongs to, where the version has it."""
        resolved = self._table.resolve(name)
        return self._family(self._table.families[resolved]) if resolved is not None else None

    def presence(self, name: str) -> Presence:
        """What it means that no series of this name was scraped; ``name`` as a selector writes it."""
        resolved = self._table.resolve(name)
        if resolved is None and not name.startswith(_VLLM):
            return Presence(PresenceKind.FOREIGN)
        if self._doubt is not None:
            return Presence(PresenceKind.UNCERTAIN, self._doubt)
        if resolved is None:
            first, last = self._table.first, self._table.last
            return Presence(PresenceKind.LACKING, f"no vLLM from {first} to {last} exports {name}")
        family = self._family(self._table.families[resolved])
        if family is None:
            return Presence(PresenceKind.LACKING, self._lacking(resolved))
        return self._present(family, name)

    def aliases(self, name: str) -> tuple[str, ...]:
        """Older and newer names of the same thing; a mean that became two histograms has both."""
        resolved = self._table.resolve(name)
        return self._table.aliases(resolved) if resolved is not None else ()

    def _present(self, family: Family, name: str) -> Presence:
        if self.multiprocess and (family.one_process or (name != family.name and name.endswith("_created"))):
            reason = f"{name} is not exported where several API servers share one registry (--api-server-count above 1)"
            return Presence(PresenceKind.LACKING, reason)
        if family.needs is not None:
            reason = f"vLLM {self.version} exports {family.name} only with {family.needs}"
            return Presence(PresenceKind.NEEDS_FEATURE, reason)
        return Presence(PresenceKind.STARTS_EMPTY if family.empty else PresenceKind.EXPORTED)

    def _family(self, eras: tuple[Family, ...]) -> Family | None:
        release = self._release
        if self._doubt is not None or release is None:
            return eras[-1]
        era = next((one for one in eras if one.within(release)), None)
        return None if era is None else self._table.with_labels_of(era, release)

    def _lacking(self, name: str) -> str:
        eras = self._table.families[name]
        first, last = eras[0].since, eras[-1].until
        others = self.aliases(name)
        instead = [one for one in others if self._family(self._table.families[one]) is not None]
        words = f"; here it is {' and '.join(instead)}" if instead else ""
        if first is not None and self._release is not None and self._release < _release(first):
            return f"vLLM {self.version} has no {name}: it came with {first}{words}"
        return f"vLLM {self.version} has no {name}: it ended with {last}{words}"


def contract_for(version: str | None, *, multiprocess: bool = False) -> Contract:
    """The contract of a version: ``0.32.0``, ``0.8.5.post1``, ``0.32.0+cpu``; None where nobody says it.

    A version that is not known or not in the tables has the families of all, and each missing one is UNCERTAIN.
    ``multiprocess``: several API servers answer from one registry (:func:`is_multiprocess`).
    """
    return Contract(_table(), version, multiprocess)


def is_multiprocess(names: Collection[str]) -> bool | None:
    """Whether an exposition with samples of these names comes from a registry of several processes.

    Such a registry has vLLM's families but none of prometheus_client's own. None where nothing of vLLM is there.
    """
    if not any(name.startswith(_VLLM) for name in names):
        return None
    return not any(name.startswith(("process_", "python_")) for name in names)


def version_range(names: Collection[str]) -> tuple[str, str] | None:
    """First and last release that would export all of these names; None where none would, or nothing is told.

    The last release of the table stands for all that follow. A version out of a launcher or a log is better.
    """
    table = _table()
    resolved = {table.resolve(name) for name in names if name.startswith(_VLLM)}
    eras = [table.families[name] for name in resolved if name is not None]
    if not eras:
        return None
    first = max((family[0].since or table.first for family in eras), key=_release)
    last = min((family[-1].until or table.last for family in eras), key=_release)
    return (first, last) if _release(first)[: len(_release(last))] <= _release(last) else None


class _Table:
    """The file, indexed by family; the eras of a family from the oldest to the newest."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self.first, self.last = str(document["first"]), str(document["last"])
        self._labels_since: Mapping[str, str] = msgspec.convert(document["labels_since"], dict[str, str])
        self.families: dict[str, tuple[Family, ...]] = {}
        for prefix, groups in document.items():
            if isinstance(groups, list):
                for family in _families(prefix, groups):
                    self.families[family.name] = (*self.families.get(family.name, ()), family)
        self._old: dict[str, list[str]] = {}
        for name, eras in self.families.items():
            for new in eras[-1].new:
                self._old.setdefault(new, []).append(name)

    def doubt(self, version: str | None, release: _Release | None) -> str | None:
        """Why nothing can be said about a version; None where it is in the table."""
        if version is None or release is None:
            return "the version of vLLM is not known" if version is None else f"{version!r} is no version of vLLM"
        if release < _release(self.first):
            return f"vLLM {version} is older than what is known here ({self.first} to {self.last})"
        if release[:2] > _release(self.last)[:2]:
            return f"vLLM {version} is newer than what is known here ({self.first} to {self.last})"
        return None

    def resolve(self, name: str) -> str | None:
        """The family of a sample's name; an exact name wins, since a histogram may end in ``_total``."""
        if name in self.families:
            return name
        if f"{name}_total" in self.families:
            return f"{name}_total"  # the family's name in OpenMetrics
        head, _, tail = name.rpartition("_")
        if head in self.families:
            return head if f"_{tail}" in _SUFFIXES.get(self.families[head][0].type, ()) else None
        return f"{head}_total" if tail == "created" and f"{head}_total" in self.families else None

    def aliases(self, name: str) -> tuple[str, ...]:
        """Newer names first, then older ones, then those that an older name has beside this one."""
        found = [*self.families[name][-1].new, *self._old.get(name, ())]
        return tuple(dict.fromkeys(one for one in found if one != name))

    def with_labels_of(self, family: Family, release: _Release) -> Family:
        """The family with the labels that this release gives its samples."""
        if family.labels is None:
            return family
        late = [label for label, since in self._labels_since.items() if release < _release(since)]
        if not any(label in family.labels for label in late):
            return family
        return msgspec.structs.replace(family, labels=tuple(one for one in family.labels if one not in late))


def _families(prefix: str, groups: list[dict[str, str]]) -> Iterator[Family]:
    for group in groups:
        kind = next(one for one in _TYPES if one in group)
        labels = group.get("labels", _ENGINE_LABELS)
        for name in group[kind].split():
            yield Family(
                name=prefix + name,
                type=kind,
                labels=None if labels == "*" else tuple(labels.split()),
                since=group.get("since"),
                until=group.get("until"),
                empty="empty" in group,
                needs=group.get("needs"),
                zero_without=group.get("zero_without"),
                one_process="one_process" in group,
                unit=group.get("unit"),
                new=tuple(prefix + one for one in group.get("new", "").split()),
                verified="verified" not in group,
                rests_on=group.get("rests_on"),
            )


@functools.cache
def _table() -> _Table:
    text = (resources.files("agent.series") / "contracts.yaml").read_text(encoding="utf-8")
    # The C parser without the resolution of types: a version such as 0.20 stays text, and it costs a third less.
    return _Table(yaml.load(text, Loader=yaml.CBaseLoader))


@functools.cache
def _release(version: str) -> _Release:
    return tuple(int(part) for part in version.split("."))


def _parse(version: str | None) -> _Release | None:
    """``0.8.5.post1``, ``v0.32.0+cpu`` and ``0.11.1rc2`` as their release; None for a text of another kind."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return tuple(int(part or 0) for part in found.groups()) if found else None
