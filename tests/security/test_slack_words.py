"""Slack must not read a log's text as markup of its own."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from agent.model import Evidence
from agent.notify.message import render
from tests.journal.builders import action, incident


def markdown(value: object) -> Iterator[dict[str, object]]:
    """Every text object of Slack's own markup."""
    if isinstance(value, dict):
        if value.get("type") == "mrkdwn":
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from markdown(item)


@pytest.mark.parametrize("evil", ["@here @channel @everyone", "#general", "https://evil.example/x", "<!here|x>"])
def test_names_and_addresses_in_a_log_are_neither_linked_nor_pinged(evil: str) -> None:
    repair = msgspec.structs.replace(action("a-1"), change=evil, why=(evil,), outcome=evil)
    seen = Evidence(source="log", where=evil, text=evil)
    plain = incident(summary=evil, note=evil, evidence=(seen,), actions=(repair,))
    message = render(msgspec.structs.replace(plain, server=evil, explains=(evil,)))
    texts = list(markdown(message.blocks))
    assert len(texts) >= 6
    assert all(text["verbatim"] is True and "<!" not in str(text["text"]) for text in texts)
    assert "<!" not in message.text
