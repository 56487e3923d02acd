"""The commands, their options and the exit codes are the ones that were kept: see `surface`."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED, STORE_FAILED
from tests.cli.surface import surface
from tests.docs.pages import ROOT

KEPT = Path(__file__).with_name("surface.txt")
CTRL_C = 130


def test_commands_options_and_exit_codes_are_those_that_were_kept() -> None:
    assert list(surface()) == KEPT.read_text("utf-8").splitlines()


def test_the_page_about_the_command_line_lists_the_exit_codes() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert listed == [0, FOUND_PROBLEMS, BAD_INPUT, STORE_FAILED, REFUSED, CTRL_C]
