"""What may leave the machine: command lines and environments without their secrets.

In: argument lists, text, environments. Out: the same with secrets replaced by ``***``. Never decides who may
read; it is the last step before text goes to a socket, an incident or a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"
SECRET_FLAGS = frozenset({"--api-key", "--hf-token", "--token", "--ssl-keyfile-password", "--admin-api-key"})
SHOWN_ENV = re.compile(r"^(VLLM_|TRITON_|PYTORCH_|CUDA_|NCCL_|TORCH|HF_HUB_OFFLINE$|NVIDIA_VISIBLE_DEVICES$)")
SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")

_PATTERNS = (
    re.compile(r"(?i)(\bbearer\s+)[^\s\"',]+"),
    re.compile(r"(--(?:api-key|hf-token|token|admin-api-key|ssl-keyfile-password)(?:=|\s+))[^\s\"']+"),
    re.compile(
        r"(?i)(['\"]?\b[\w-]*(?:api[_-]?key|token|secret|password|passwd)\b['\"]?\s*[=:]\s*)(?!None\b|\d+\b|\*\*\*)['\"]?[^\s,'\"\])}]{6,}['\"]?"
    ),
    re.compile(r"(://[^/\s:@]+:)[^@\s/]+(?=@)"),
    re.compile(
        r"()\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|xox[abeprs]-[A-Za-z0-9-]{8,}|gh[pousr]_[A-Za-z0-9]{16,})"
    ),
)


def redact(text: str) -> str:
    """``text`` with keys, tokens, passwords and bearer headers replaced by ``***``."""
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line fit to be shown; every value that follows a secret flag is masked (``--api-key``
    takes many).
    """
    shown: list[str] = []
    masking = False
    for token in argv:
        name, has_value, _ = token.partition("=")
        if name.replace("_", "-") in SECRET_FLAGS:
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
