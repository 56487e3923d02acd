"""Every command that a page shows exists, with the options that are shown."""

from __future__ import annotations

import re

from tests.cli.test_named_commands import missing
from tests.docs.pages import pages

LINE = re.compile(
    r"(?:^(?:[A-Z_]+=\S+ )*|`|\$ |# or: |: )holdfast ((?:[a-z]+)(?:[^`#\n]*))", re.MULTILINE
)
"""A command at the start of a line, behind a prompt, or quoted."""


def words(line: str) -> list[str]:
    """Split a line; keep the first of `create|ls`, and COMMAND of `config COMMAND`."""
    return [re.split(r"[=|]", word)[0] for word in line.removeprefix("config ").split()]


def test_the_commands_that_pages_name_are_there_with_their_options() -> None:
    named = [(page.name, found[1]) for page in pages() for found in LINE.finditer(page.text)]
    wrong = {(page, line): bad for page, line in named if (bad := missing(words(line)))}
    assert wrong == {}
    assert len(named) > 100
