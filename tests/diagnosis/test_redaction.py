"""No secret and no prompt in evidence, which goes to chat rooms."""

from __future__ import annotations

import pytest

from agent.diagnose.redact import LIMIT, redact
from tests.diagnosis.logs import session


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdef1234567890",
        "hf_AbCdEfGhIjKlMnOp",
        "xoxb-123456789-abcdef",
        "ghp_abcdefghij0123456789",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
@pytest.mark.parametrize(
    "frame", ["token {}", "'api_key': ['{}']", "Authorization: Bearer {}", "https://x/?t={}", "{}"]
)
def test_secrets_are_masked(secret: str, frame: str) -> None:
    assert secret not in redact(frame.format(secret))


@pytest.mark.parametrize(
    "text",
    ["--api-key=hunter2secret", "api_key='hunter2secret'", "password: hunter2secret", "http://user:hunter2secret@host/x",
     "Bearer hunter2secret", '"hf_token": "hunter2secret"'],
)  # fmt: skip
def test_values_named_secret_are_masked(text: str) -> None:
    assert "hunter2secret" not in redact(text)


@pytest.mark.parametrize(
    "text", ["prompt: 'my diary'", '"messages": [{"content": "my diary"}]', "prompt='my diary', x"]
)
def test_prompts_are_masked(text: str) -> None:
    assert "my diary" not in redact(text)


@pytest.mark.parametrize(
    "text",
    ["Tried to allocate 220.00 MiB. GPU 0 has a total capacity of 139.80 GiB",
     "max_tokens=5000 cannot be greater than 1024",
     "prompt throughput: 10.0 tokens/s", "maximum number of tokens that can be stored in KV cache (7344)"],
)  # fmt: skip
def test_numbers_that_matter_stay(text: str) -> None:
    assert redact(text) == text


def test_text_is_bounded_and_printable() -> None:
    assert len(redact("x" * 10_000_000)) == LIMIT
    assert redact("a\x1b[31mb\0c\x07").isprintable()


def test_signals_and_last_error_are_redacted_too() -> None:
    read = session("")
    signals = read.feed(b"vllm: error: unrecognized arguments: --apikey token=sk-abcdef1234567890\n")
    assert signals and "sk-abcdef" not in signals[0].text
    assert "sk-abcdef" not in (read.last_error_line or "sk-abcdef")
