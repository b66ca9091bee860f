"""Keeps secrets and prompts out of whatever text leaves the agent. Text in, bounded text out.

Logs carry API keys (in argument dumps), hub tokens (in URLs and headers) and prompts (with request logging
on). Evidence needs none of them.
"""

from __future__ import annotations

import re

LIMIT = 500

_SECRET = re.compile(
    r"(?P<keep>(?:api[_-]?keys?|auth[_-]?token|access[_-]?token|hf[_-]?token|token|secret|password|passwd)"
    r"['\"]?\s*[=:]\s*(?:\[\s*)?['\"]?)(?P<value>[^\s'\",\])}]{4,})"
    r"|(?P<bearer>\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{6,}"
    r"|\b(?:sk-[A-Za-z0-9_-]{6,}|hf_[A-Za-z0-9]{6,}|xox[abpr]-[A-Za-z0-9-]{6,}|gh[pousr]_[A-Za-z0-9]{10,}"
    r"|AKIA[0-9A-Z]{12,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{6,}[A-Za-z0-9._-]*)"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
    re.IGNORECASE,
)
_PROMPT = re.compile(r"\b(prompt|messages|prompt_token_ids|input_text)(['\"]?\s*[:=]\s*)(?!None)[\['\"{(].*", re.DOTALL)


def redact(text: str, limit: int = LIMIT) -> str:
    """``text`` without secrets and prompts, printable, at most ``limit`` characters."""
    # Cut before matching (a line may be a megabyte), but late enough that a secret is not split into the
    # open.
    cut = text[: limit * 4]
    clean = _PROMPT.sub(r"\1\2[redacted]", _SECRET.sub(_mask, cut))
    clean = "".join(c if c.isprintable() else " " for c in clean).strip()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _mask(match: re.Match[str]) -> str:
    return f"{match.group('keep') or match.group('bearer') or ''}[redacted]"
