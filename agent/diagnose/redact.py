"""Keeps secrets and prompts out of whatever text leaves the agent. Text in, bounded text out.

Logs carry API keys (in argument dumps), hub tokens (in URLs and headers), and with request logging on the prompts and
the answers (vLLM's ``vllm/entrypoints/logger.py``: ``prompt: %r``, ``output: %r``; pydantic's ``input_value=`` repeats
what a client sent). Evidence needs none of them. What a secret looks like is known in one place, the launcher's.
"""

from __future__ import annotations

import re

from agent.launch import redact as mask_secrets

LIMIT = 500
MARK = "[redacted]"

_OPENER = r"(?:[A-Za-z_.]+\()?[bru]{0,2}\\*[\['\"{(]"
# A name of user text and what follows it. Words as common as "text" or "input" count only as quoted keys of JSON.
_PROMPT = re.compile(
    r"(?P<keep>(?:\b|_)(?:prompts?|messages|prompt_token_ids|prompt_embeds|input_text|input_value|output|outputs"
    r"|output_token_ids|(?:\w{0,20}_)?content|completion)\\*['\"]?\s*[:=]\s*)(?!None|null)" + _OPENER + r".*"
    r"|(?P<bare>\bprompt: )(?!None\b|null\b|[\d\s])\S.*"
    r"|(?P<key>['\"](?:input|inputs|text|texts|query|queries|documents|instructions|reasoning)\\*['\"]\s*:\s*)"
    r"(?!None|null)\\*[\['\"{].*",
    re.DOTALL | re.IGNORECASE,
)


def redact(text: str, limit: int = LIMIT) -> str:
    """``text`` without secrets and prompts, printable, at most ``limit`` characters."""
    # Cut before matching (a line may be a megabyte), but late enough that a secret is not split into the
    # open.
    cut = text[: limit * 4]
    clean = mask_secrets(_PROMPT.sub(_cut_off, cut), MARK)
    clean = "".join(c if c.isprintable() else " " for c in clean).strip()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _cut_off(match: re.Match[str]) -> str:
    return f"{match['keep'] or match['bare'] or match['key']}{MARK}"
