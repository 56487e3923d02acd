"""Every link from one page to another is valid."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import Page, pages

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page as GitHub names them."""
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in HEADING.findall(text))
    return {"-".join(words.split(" ")) for words in plain}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_links_of_a_page_are_valid(page: Page) -> None:
    broken = []
    for link in LINK.findall(page.text):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.path.parent / path).resolve() if path else page.path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert broken == []
