"""The part of Go's templates that annotations and labels may use.

In: the text of one label or annotation. Out: a :class:`Template` that expands as Prometheus does: ``$labels.x``,
``$value``, ``humanize`` and its kin, ``printf``, pipes, parentheses, comments, trim markers. Anything else (``if``,
``range``, ``query``, variables …) is refused when the file is loaded, with what it is, because a text that fails when
an alert fires fails when it is needed. Types are known beforehand: ``$value`` is a number, labels and results are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from agent.alerts.humanize import (
    fixed,
    humanize,
    humanize1024,
    humanize_duration,
    humanize_percentage,
    plain,
)

Datum = float | str
Step = Callable[[Mapping[str, str], float], Datum]

FUNCTIONS: Mapping[str, Callable[[float], str]] = {
    "humanize": humanize,
    "humanize1024": humanize1024,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": humanize_percentage,
}
_SPACE = " \t\r\n"
_OPEN = re.compile(r"\{\{(-[ \t\r\n])?")
_COMMENT = re.compile(r"\s*/\*.*?\*/(?=(\s+-)?\}\})", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<field>\.[^\W\d]\w*(?:\.\w*)*)
      | (?P<variable>\$\w*(?:\.\w*)*)
      | (?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)(?![\w.]))
      | (?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
      | (?P<word>[^\W\d]\w*)
      | (?P<sign>[()|])""",
    re.VERBOSE,
)
_VERB = re.compile(r"%(?:%|\.(?P<digits>\d{1,2})f|(?P<verb>[fsv]))")


class TemplateError(ValueError):
    """A construct that this subset does not have; the text says which."""


class Template:
    """A parsed text. ``constant``: it holds no actions. ``uses_value``: it changes with the alert's value."""

    __slots__ = ("_parts", "constant", "text", "uses_value")

    def __init__(self, text: str) -> None:
        self.text = text
        self.uses_value = False
        self._parts = _parts(text, self)
        self.constant: str | None = "".join(p for p in self._parts if isinstance(p, str))
        if any(not isinstance(part, str) for part in self._parts):
            self.constant = None

    @classmethod
    def verbatim(cls, text: str) -> Template:
        """A text that is taken as it stands, braces and all."""
        template = cls("")
        template.text = template.constant = text
        return template

    def expand(self, labels: Mapping[str, str], value: float) -> str:
        """The text for one alert; an error while it is expanded is told in the text, as Prometheus does."""
        if self.constant is not None:
            return self.constant
        try:
            return "".join(part if isinstance(part, str) else _shown(part(labels, value)) for part in self._parts)
        except ValueError as error:
            return f"<error expanding template: {error}>"


def _shown(datum: Datum) -> str:
    return datum if isinstance(datum, str) else plain(datum)


def _parts(text: str, template: Template) -> list[str | Step]:
    """Texts and actions in order. Raises TemplateError."""
    parts: list[str | Step] = []
    position, trim = 0, False
    while match := _OPEN.search(text, position):
        before = text[position : match.start()]
        before = before.lstrip(_SPACE) if trim else before
        parts.append(before.rstrip(_SPACE) if match.group(1) else before)
        parser = _Action(text, match.end(), template)
        if (step := parser.action()) is not None:
            parts.append(step)
        position, trim = parser.position, parser.trims
    rest = text[position:]
    parts.append(rest.lstrip(_SPACE) if trim else rest)
    return [part for part in parts if part != ""]


class _Action:
    """Parses what stands between ``{{`` and ``}}``; ``position`` is behind it afterwards."""

    def __init__(self, text: str, position: int, template: Template) -> None:
        self._text = text
        self._start = position
        self._template = template
        self.position = position
        self.trims = False

    def action(self) -> Step | None:
        comment = _COMMENT.match(self._text, self.position)
        if comment is not None:
            self.position = comment.end()
        tokens = self._tokens()
        if comment is not None:
            return None
        if not tokens:
            raise TemplateError("an action `{{ }}` is empty")
        step, _ = _Pipeline(tokens, self._template).whole()
        return step

    def _tokens(self) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        while True:
            if self._text.startswith("}}", self.position):
                self.position += 2
                return tokens
            if (match := _TOKEN.match(self._text, self.position)) is None:
                raise TemplateError(self._strange())
            self.position = match.end()
            if match.lastgroup == "space" and self._text.startswith("-}}", self.position):
                self.position += 3
                self.trims = True
                return tokens
            tokens.append((match.lastgroup or "", match.group()))

    def _strange(self) -> str:
        if self.position >= len(self._text):
            return "`{{` is not closed by `}}`"
        rest = self._text[self.position :]
        if rest.startswith((":=", "=")):
            return "variables cannot be set (`:=`)"
        if rest.startswith('"'):
            return "a quoted text is not closed"
        return f"`{rest[0]}` is not known in `{{{{{self._text[self._start : self.position]}…`"


class _Pipeline:
    """Recursive descent over one action; yields the step and its type (``number``, ``integer`` or ``text``)."""

    def __init__(self, tokens: Sequence[tuple[str, str]], template: Template) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0
        self._template = template

    def whole(self) -> tuple[Step, str]:
        result = self._pipeline()
        kind, text = self._tokens[self._at]
        if kind != "end":
            raise TemplateError(f"`{text}` is not expected here")
        return result

    def _pipeline(self) -> tuple[Step, str]:
        result = self._command(None)
        while self._peek() == ("sign", "|"):
            self._next()
            result = self._command(result)
        return result

    def _command(self, piped: tuple[Step, str] | None) -> tuple[Step, str]:
        self._spaces()
        kind, text = self._tokens[self._at]
        if kind == "word":
            return self._function(piped)
        first = self._operand()
        if piped is not None:
            raise TemplateError("only a function can stand behind `|`")
        if self._peek()[0] not in ("end", "sign") or self._peek()[1] == "(":
            raise TemplateError(f"`{text}` is no function and takes no arguments")
        return first

    def _function(self, piped: tuple[Step, str] | None) -> tuple[Step, str]:
        name = self._next()[1]
        if name not in FUNCTIONS and name != "printf":
            raise TemplateError(f"`{name}` is not supported; known are {', '.join((*FUNCTIONS, 'printf'))}")
        arguments: list[tuple[Step, str]] = []
        texts: list[str] = []
        while self._peek()[0] != "end" and self._peek() not in (("sign", "|"), ("sign", ")")):
            texts.append(self._tokens[self._at][1])
            arguments.append(self._operand())
        if piped is not None:
            arguments.append(piped)
            texts.append("|")
        if name == "printf":
            return _printf(arguments, texts), "text"
        if len(arguments) != 1:
            raise TemplateError(f"`{name}` takes one argument, not {len(arguments)}")
        return _humanized(name, *arguments[0]), "text"

    def _operand(self) -> tuple[Step, str]:
        kind, text = self._next()
        if kind in ("field", "variable"):
            return self._lookup(text)
        if kind == "number":
            number = float(text)
            return (lambda labels, value: number), "number" if re.search("[.eE]", text) else "integer"
        if kind == "text":
            quoted = _unquoted(text)
            return (lambda labels, value: quoted), "text"
        if (kind, text) == ("sign", "("):
            inner = self._pipeline()
            if self._peek() != ("sign", ")"):
                raise TemplateError("a parenthesis is not closed")
            self._next()
            return inner
        if kind == "word":
            raise TemplateError(f"`{text}` must stand in parentheses to be an argument")
        raise TemplateError("a value is missing" if kind == "end" else f"`{text}` is not expected here")

    def _lookup(self, text: str) -> tuple[Step, str]:
        root, _, rest = (text if text.startswith("$") else text[1:]).partition(".")
        if root in ("$value", "Value") and not rest:
            self._template.uses_value = True
            return (lambda labels, value: value), "number"
        if root in ("$labels", "Labels") and rest and "." not in rest:
            return (lambda labels, value: labels.get(rest, "")), "text"
        if root in ("$labels", "Labels"):
            raise TemplateError(f"`{text}` names no single label; write `$labels.NAME`")
        raise TemplateError(f"`{text}` is not supported; known are `$labels.NAME` and `$value`")

    def _peek(self) -> tuple[str, str]:
        self._spaces()
        return self._tokens[self._at]

    def _next(self) -> tuple[str, str]:
        self._spaces()
        token = self._tokens[self._at]
        self._at += token[0] != "end"
        return token

    def _spaces(self) -> None:
        while self._tokens[self._at][0] == "space":
            self._at += 1


def _humanized(name: str, step: Step, kind: str) -> Step:
    function = FUNCTIONS[name]
    if kind == "number":
        return lambda labels, value: function(float(step(labels, value)))

    def parsed(labels: Mapping[str, str], value: float) -> Datum:
        text = str(step(labels, value))
        try:
            return function(float(text.replace("_", "!")))
        except ValueError:
            raise ValueError(f"`{name}` cannot read the number {json.dumps(text)}") from None

    return parsed


def _printf(arguments: Sequence[tuple[Step, str]], texts: Sequence[str]) -> Step:
    if not arguments or texts[0][:1] not in ('"', "`"):
        raise TemplateError('`printf` needs a format in quotes first, such as `printf "%.2f" $value`')
    pieces, verbs = _format(_unquoted(texts[0]))
    if len(verbs) != len(arguments) - 1:
        raise TemplateError(f"`printf` has {len(verbs)} verbs and {len(arguments) - 1} values")
    writers = [_writer(verb, kind) for verb, (_, kind) in zip(verbs, arguments[1:], strict=True)]
    steps = [step for step, _ in arguments[1:]]

    def printed(labels: Mapping[str, str], value: float) -> Datum:
        written = [write(step(labels, value)) for write, step in zip(writers, steps, strict=True)]
        return pieces[0] + "".join(text + piece for text, piece in zip(written, pieces[1:], strict=True))

    return printed


def _format(form: str) -> tuple[list[str], list[re.Match[str]]]:
    """The verbs of a format and the texts around them."""
    pieces, verbs, position = [""], [], 0
    while (start := form.find("%", position)) >= 0:
        pieces[-1] += form[position:start]
        verb = _VERB.match(form, start)
        if verb is None:
            raise TemplateError(f"`printf` does not know `{form[start : start + 3]}`; known are %.Nf, %f, %s, %v, %%")
        if verb.group() == "%%":
            pieces[-1] += "%"
        else:
            verbs.append(verb)
            pieces.append("")
        position = verb.end()
    pieces[-1] += form[position:]
    return pieces, verbs


def _writer(verb: re.Match[str], kind: str) -> Callable[[Datum], str]:
    if verb["verb"] == "v":
        return _shown
    if verb["verb"] == "s":
        if kind != "text":
            raise TemplateError("`%s` prints text, and this is a number: use %.Nf or %v")
        return str
    if kind != "number":
        raise TemplateError(f"`{verb.group()}` prints a number with a point, and this is {kind}")
    digits = int(verb["digits"] or 6)
    return lambda datum: fixed(float(datum), digits)


def _unquoted(text: str) -> str:
    """A Go string literal. Raises TemplateError for escapes that JSON does not share."""
    if text.startswith("`"):
        return text[1:-1]
    try:
        return str(json.loads(text.replace("\t", "\\t")))
    except ValueError:
        raise TemplateError(f"the text {text} holds an escape that is not supported") from None
