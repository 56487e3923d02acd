"""Every command that a page names is one that there is."""

from __future__ import annotations

import re

import typer.main

from holdfast.cli.main import app
from tests.docs.pages import pages

COMMAND = re.compile(r"(?:^|`|\$ )holdfast ([a-z]+)\b(?: ([a-z]+)\b)?", re.MULTILINE)


def test_the_commands_that_pages_name_are_there() -> None:
    known = set(typer.main.get_group(app).commands)
    named = {found[1]: page.name for page in pages() for found in COMMAND.finditer(page.text)}
    assert {name: page for name, page in named.items() if name not in known} == {}
    assert len(named) > 10
