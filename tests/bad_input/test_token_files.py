"""A token file that is missing or damaged refuses writing; it never breaks the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.watch.service import read_token


@pytest.mark.parametrize("content", [b"\xff\xfe\n", "schlüssel".encode(), b"", b" \n"])
def test_a_damaged_token_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    assert read_token([tmp_path]) is None


def test_the_first_folder_with_a_token_gives_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123abcd\n")
    assert read_token([tmp_path / "missing", tmp_path]) == "0123abcd"
