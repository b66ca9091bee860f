"""YAML with lines: text in, plain values and the line of every path out.

msgspec names the path of an error but has no lines; PyYAML's nodes have lines but no types. So a file is
composed into nodes here, each path's line is noted, and plain values go on. Scalars follow YAML 1.2: only
``true`` and ``false`` are booleans (so that the mode ``off`` stays a word), no sexagesimals, no dates.
Duplicate keys are refused, since the one that is dropped would be dropped silently. Bounded: 1 MiB, 64
levels, 100,000 nodes.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from agent.errors import ConfigError

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Keys = tuple[str | int, ...]

MAX_BYTES = 1 << 20
_MAX_DEPTH = 64
_MAX_NODES = 100_000
_TAG = "tag:yaml.org,2002:"
_TYPES = ("null", "bool", "int", "float", "str", "map", "seq")
_SPACES = "indent with spaces, not tabs"


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2; Python's own, since its marks are exact."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # typed by the base class, filled right below


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(
        f"{_TAG}{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        [c if c != "\0" else "" for c in _first],
    )


class Document:
    """Plain values of a file with the line (from 1) of each path."""

    def __init__(self, name: str, value: dict[str, Value], lines: dict[Keys, int]) -> None:
        self.name = name
        self.value = value
        self._lines = lines

    def where(self, path: Keys) -> str:
        """``file:line`` of a path, or of its nearest known parent."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self.name}:{self._lines.get(path, 1)}"


def read_document(path: Path) -> Document:
    """Read and parse a configuration file. Raises ConfigError with file, line and remedy."""
    return parse_document(_read(path), str(path))


def read_texts(path: Path) -> Document:
    """Read a file of another program's format: every scalar stays the text that was written (null stays None).

    An empty file is an empty mapping. Raises ConfigError.
    """
    return parse_texts(_read(path), str(path))


def parse_texts(text: str, name: str) -> Document:
    """As :func:`read_texts`, from text."""
    node = _compose(text, name)
    if node is None:
        return Document(name, {}, {})
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError("the top must be a mapping", where=f"{name}:{_line(node)}", remedy="write `key: value` lines")
    reader = _Reader(name, texts=True)
    value = reader.value(node, ())
    assert isinstance(value, dict)
    return Document(name, value, reader.lines)


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise ConfigError("is a folder, not a file", where=str(path), remedy="name the YAML file in it")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path), remedy="check the path") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot be read: {reason}", where=str(path), remedy="make the file readable for the agent's user"
        ) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError("is larger than 1 MiB", where=f"{path}:1", remedy="this is not a configuration file")
    return _decode(raw, str(path))


def parse_document(text: str, name: str) -> Document:
    """Parse one YAML mapping. Raises ConfigError."""
    node = _compose(text, name)
    if node is None:
        raise ConfigError("the file is empty", where=f"{name}:1", remedy="write `{}` to keep every default")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            "the top must be a mapping of settings",
            where=f"{name}:{_line(node)}",
            remedy="write `key: value` lines",
        )
    reader = _Reader(name)
    value = reader.value(node, ())
    assert isinstance(value, dict)
    return Document(name, value, reader.lines)


def parse_scalar(text: str, name: str) -> Value:
    """One YAML value of an environment variable: a scalar, ``[1, 2]`` or ``{a: b}``."""
    node = _compose(text, name, lined=False)
    return None if node is None else _Reader(name, lined=False).value(node, ())


def _decode(raw: bytes, name: str) -> str:
    remedy = "save the file as UTF-8 text"
    if (position := raw.find(b"\0")) >= 0:
        line = raw.count(b"\n", 0, position) + 1
        raise ConfigError("holds binary data", where=f"{name}:{line}", remedy=remedy)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", where=f"{name}:{line}", remedy=remedy) from None


def _compose(text: str, name: str, *, lined: bool = True) -> yaml.Node | None:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark and lined else name
        problem = error.problem or error.context or "is not valid YAML"
        raise ConfigError(problem, where=where, remedy=_syntax_remedy(problem)) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        where = f"{name}:{text.count(chr(10), 0, position) + 1}" if lined else name
        reason = getattr(error, "reason", "is not valid YAML")
        raise ConfigError(reason, where=where, remedy="remove control characters") from None
    except RecursionError:
        raise ConfigError("is nested too deeply", where=name, remedy="write a flat file") from None
    finally:
        if loader is not None:
            loader.dispose()


def _syntax_remedy(problem: str) -> str:
    if "\\t" in problem:
        return _SPACES
    if "undefined alias" in problem or "expected alphabetic" in problem:
        return "put the value in quotes"
    if "but found another document" in problem:
        return "keep one document: remove the `---` line"
    return "check indentation, colons and quotes on this line and the one before"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turns nodes into values and notes lines."""

    def __init__(self, name: str, *, lined: bool = True, texts: bool = False) -> None:
        self.name = name
        self.lines: dict[Keys, int] = {}
        self._lined = lined
        self._texts = texts
        self._nodes = 0

    def value(self, node: yaml.Node, path: Keys) -> Value:
        self._nodes += 1
        if len(path) > _MAX_DEPTH or self._nodes > _MAX_NODES:
            raise self._error(node, "is nested too deeply or refers to itself", "write the values out")
        self.lines.setdefault(path, _line(node))
        if node.tag.removeprefix(_TAG) not in _TYPES:
            raise self._error(node, f"the tag `{node.tag}` is not known", "remove the tag")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Keys) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be a word", "write `key: value`")
            key = str(key_node.value)
            here = (*path, key)
            if key in values:
                first = self.lines[here]
                raise self._error(key_node, f"`{key}` is given twice (first on line {first})", "keep one of them")
            self.lines[here] = _line(key_node)
            values[key] = self.value(value_node, here)
        return values

    def _scalar(self, node: yaml.Node) -> Value:
        text = str(node.value)
        kind = node.tag.rpartition(":")[2]
        if kind == "null":
            return None
        if self._texts:
            return text
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            return self._number(node, text)
        if kind == "float":
            return float(text)
        return text

    def _number(self, node: yaml.Node, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self._error(node, "this number is too long", "put it in quotes if it is text") from None

    def _error(self, node: yaml.Node, message: str, remedy: str) -> ConfigError:
        where = f"{self.name}:{_line(node)}" if self._lined else self.name
        return ConfigError(message, where=where, remedy=remedy)
