"""What may leave the machine: command lines, environments and text without their secrets.

In: argument lists, text, environments. Out: the same with secrets replaced by a mark. Never decides who may
read; it is the last step before text goes to a socket, an incident, a chat room or a file. Secrets are known by the
name before them (``AWS_SECRET_ACCESS_KEY=``), by the flag (``--api-key``), by their place in a URL, or by the form
that their issuer gave them (``hf_…``, ``xapp-…``); where a name decides, all of its value goes: a whole list, all that
is in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"
SHOWN_ENV = re.compile(r"^(VLLM_|TRITON_|PYTORCH_|CUDA_|NCCL_|TORCH|HF_HUB_OFFLINE$|NVIDIA_VISIBLE_DEVICES$)")
SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")

# Not only the flags that vLLM has: argparse takes the beginning of one (--api-k), and a misspelt one (--apikey) is just
# what an error message repeats with its value.
_FLAG = (
    r"--(?:\w[\w-]{0,40}[-_])?"
    r"(?:api[-_]?k(?:eys?|e)?|(?:secret|access|private|auth)[-_]?key|hf[-_]?tok(?:en?)?|token|secret|passw(?:or)?d|passphrase)"
)
SECRET_FLAG = re.compile(_FLAG, re.IGNORECASE)
_NAME = (
    r"(?:(?:api|access|secret|private|auth|account|signing|encryption|shared|subscription)[_-]?(?:access[_-]?)?keys?"
    r"|(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)token(?!\\*['\"]?\s*[=:]\s*\d+\b)"
    r"|secret|passw(?:or)?d|passphrase|_pwd|amz-signature|amz-credential|(?<=[?&])(?:sig|signature|key))"
)
_VALUE = r"(?:\[[^\]]*|(?P<quote>\\*['\"])(?:(?!(?P=quote)).)*|[^\s'\",\])}]{3,})"

# Each keeps its group ``keep`` and masks the rest. Every one is linear in the text: no repeat within a repeat.
_PATTERNS = (
    re.compile(r"(?P<keep>)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL),
    re.compile(rf"(?P<keep>{_FLAG}\\*['\"]\s*,\s*)(?:\\*['\"](?!-)[^'\"]*['\"]\s*,?\s*)+"),
    re.compile(rf"(?P<keep>{_FLAG}(?:=|[ \t]+))(?!-)[^\s]+(?:[ \t]+(?!-)[^\s]+)*"),
    re.compile(
        r"(?i)(?P<keep>authorization\\*['\"]?\s*[=:,]\s*(?:b?\\*['\"])?(?:(?:bearer|basic|token|digest)\s+)?)"
        r"(?!None\b|null\b)[^\s'\",\\]+"
    ),
    re.compile(r"(?i)(?P<keep>\b(?:bearer|basic)\s+)(?!auth)[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"(?i)(?P<keep>cookie\\*['\"]?\s*[=:]\s*(?:\\*['\"])?)[^'\"\r\n]+"),
    re.compile(
        rf"(?i)(?P<keep>{_NAME}\\*['\"]?\s*[=:]\s*)(?!None\b|null\b|['\"]?\*\*\*|\[?redacted|['\"]{{2}}){_VALUE}",
        re.DOTALL,
    ),
    re.compile(r"(?P<keep>://)[^/\s?#]+(?=@)"),
    re.compile(r"(?P<keep>hooks\.slack\.com/\w+/)[^\s'\"<>|]+"),
    re.compile(
        r"(?P<keep>)\b(?:hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|[a-z]{14,})|sk-[A-Za-z0-9_-]{6,}"
        r"|xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{6,}|xapp-[A-Za-z0-9-]{6,}|gh[pousr]_[A-Za-z0-9]{10,}"
        r"|github_pat_\w{10,}|glpat-[\w-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{10,}"
        r"|nvapi-[\w-]{8,}|npm_[A-Za-z0-9]{20,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{6,}[A-Za-z0-9._-]*)"
    ),
)


def redact(text: str, mark: str = MASK) -> str:
    """``text`` with keys, tokens, passwords, bearer headers and credentials in URLs replaced by ``mark``."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: _masked(match, mark), text)
    return text


def _masked(match: re.Match[str], mark: str) -> str:
    """What is kept, the opening bracket or quote of the value, the mark."""
    hidden = match[0][len(match["keep"]) :]
    opened = re.match(r"\[\s*|\\*['\"]", hidden) if match["keep"] else None
    if mark in (hidden, hidden.strip("'\"[]\\ ")):
        return match[0]
    return f"{match['keep']}{opened[0] if opened else ''}{mark}"


def _names_secret(name: str) -> bool:
    """Whether a word of a command line is the flag of a secret."""
    return SECRET_FLAG.fullmatch(name) is not None


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line fit to be shown; every value that follows a secret flag is masked (``--api-key``
    takes many).
    """
    shown: list[str] = []
    masking = False
    for token in argv:
        name, has_value, _ = token.partition("=")
        if _names_secret(name):
            masking = not has_value
            shown.append(f"{name}={MASK}" if has_value else token)
        elif masking and not token.startswith("-"):
            shown.append(MASK)
        else:
            masking = False
            shown.append(redact(token))
    return shown


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to vLLM, sorted; whatever is named like a secret shows ``***``."""
    return {
        name: MASK if SECRET_NAME.search(name) else redact(value)
        for name, value in sorted(env.items())
        if SHOWN_ENV.match(name)
    }
