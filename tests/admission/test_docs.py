"""The how-to's book and its cases are what they claim to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.admission.book import read_book
from holdfast.admission.cases import read_cases, run_cases
from holdfast.admission.matches import Match
from holdfast.admission.variables import TYPES

PAGE = (Path(__file__).parents[2] / "docs/how-to/policy.md").read_text("utf-8")


@pytest.mark.req("A13")
def test_the_book_of_the_how_to_passes_its_own_cases() -> None:
    book, cases, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

    assert run_cases(read_book(book), read_cases(cases)) == []


def test_every_variable_can_be_matched_and_is_on_the_page() -> None:
    assert set(Match.__struct_fields__) == set(TYPES)
    assert [name for name in TYPES if f"`{name}`" not in PAGE] == []
