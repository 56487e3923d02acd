"""Books and variables for the tests of admission."""

from __future__ import annotations

from typing import Any

from holdfast.admission.book import Book, read_book
from holdfast.admission.variables import DEFAULTS
from holdfast.admission.verdicts import Decision, Unknown, judge


def book_of(*rules: str, default: str = "allow", head: str = "") -> Book:
    """Return a book of these rules, each given as the lines after `[[rule]]`."""
    text = "\n".join(f"[[rule]]\n{rule}\n" for rule in rules)
    return read_book(f'version = 1\ndefault = "{default}"\n{head}\n{text}')


def variables(**changed: Any) -> dict[str, Any]:
    """Return the variables of a plain job, but for these."""
    return DEFAULTS | changed


def decide(book: Book, *, now: int | None = None, **changed: Any) -> Decision:
    """Return what a book decides on a job; it must be able to."""
    found = judge(book, variables(**changed), now=now)
    assert isinstance(found, Decision), found
    return found


def undecided(book: Book, *, now: int | None = None, **changed: Any) -> Unknown:
    """Return what a book needs to decide on a job."""
    found = judge(book, variables(**changed), now=now)
    assert isinstance(found, Unknown), found
    return found
