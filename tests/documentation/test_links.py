"""Every link inside the project leads somewhere, every page is reachable, and none names a machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.pages import PAGES, ROOT, anchors, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(path: Path) -> list[str]:
    return [link for link in LINK.findall(prose(path)) if not re.match(r"https?:", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}; there are {sorted(anchors(target))}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link.partition("#")[0]]
    assert {path for path in PAGES if path.parent.name == "docs"} <= seen
