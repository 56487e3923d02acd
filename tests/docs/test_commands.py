"""Every command that a page names is one that there is, with the options that it is given."""

from __future__ import annotations

import re

from tests.docs.pages import pages
from tests.surfaces.test_named_commands import missing

LINE = re.compile(
    r"(?:^(?:[A-Z_]+=\S+ )*|`|\$ |# or: |: )holdfast ((?:[a-z]+)(?:[^`#\n]*))", re.MULTILINE
)
"""A command at the start of a line, behind a prompt, or quoted."""


def words(line: str) -> list[str]:
    """Take a line apart; of `create|ls` the first, and of `config COMMAND` what it is asked of."""
    return [re.split(r"[=|]", word)[0] for word in line.removeprefix("config ").split()]


def test_the_commands_that_pages_name_are_there_with_their_options() -> None:
    named = [(page.name, found[1]) for page in pages() for found in LINE.finditer(page.text)]
    wrong = {(page, line): bad for page, line in named if (bad := missing(words(line)))}
    assert wrong == {}
    assert len(named) > 100
