"""The pages as the tests read them: text, fenced blocks, table cells, words in code font."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``info`` is what stands behind the opening fence."""

    page: str
    line: int
    info: str
    body: str


def read(name: str) -> str:
    """A page of ``docs/``."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(path.name, text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["body"])
        for found in _FENCE.finditer(text)
    ]


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first header cell is ``heading``."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == heading:
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            found.append(cells)
    return found


def code(text: str) -> list[str]:
    """The words in code font."""
    return re.findall(r"`([^`\n]+)`", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ +(.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
