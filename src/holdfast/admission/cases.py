"""Tests of a book in a table: jobs, and what the book must decide on them."""

from __future__ import annotations

import difflib
import re
import tomllib
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.admission.book import Book
from holdfast.admission.variables import DEFAULTS, TYPES
from holdfast.admission.verdicts import Decision, judge, verdict_name
from holdfast.durations import micros
from holdfast.errors import BadPolicy


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job, and what is expected."""

    name: str
    job: dict[str, Any] = {}
    """The variables that differ from those of a plain function."""
    expect: str
    """A verdict; `undecided` where the clock is needed and `at` is not given."""
    rule: str | None = None
    """The rule that must decide; `default` for the default; None: any."""
    at: datetime | None = None


class CaseFailure(Struct, frozen=True, kw_only=True):
    """A case that the book decides otherwise."""

    name: str
    expected: str
    found: str
    reason: str | None = None


class _Cases(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    case: tuple[Case, ...]


def read_cases(text: str, source: str = "cases") -> tuple[Case, ...]:
    """Return the cases of a TOML file; BadPolicy names the case and what is wrong with it."""
    try:
        cases = msgspec.convert(tomllib.loads(text), _Cases).case
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadPolicy(f"{source}: {error}") from None
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r"\s*\[\[\s*case\s*\]\]", line)
    ]
    for number, case in enumerate(cases):
        where = f"{source}:{lines[number]}" if number < len(lines) else source
        for name, value in case.job.items():
            _check_variable(name, value, f"{where}: case {case.name}")
    return cases


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "list": (list,),
    "map": (dict,),
}


def _check_variable(name: str, value: Any, where: str) -> None:
    if name not in TYPES:
        found = difflib.get_close_matches(name, list(TYPES), n=1, cutoff=0.5)
        hint = f", did you mean {found[0]!r}?" if found else ""
        raise BadPolicy(f"{where}: there is no variable {name!r}{hint}")
    texts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    if type(value) not in _KINDS[TYPES[name]] or not all(isinstance(one, str) for one in texts):
        raise BadPolicy(f"{where}: {name} must be of type {TYPES[name]}, not {value!r:.100}")


def run_cases(book: Book, cases: tuple[Case, ...]) -> list[CaseFailure]:
    """Return the cases that a book decides otherwise than they expect."""
    return [failure for case in cases if (failure := _run(book, case)) is not None]


def _run(book: Book, case: Case) -> CaseFailure | None:
    at = case.at
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    found = judge(book, DEFAULTS | case.job, now=None if at is None else micros(at))
    verdict, rule = verdict_name(found), found.rule or "default"
    if verdict == case.expect and case.rule in (None, rule):
        return None
    return CaseFailure(
        name=case.name,
        expected=case.expect if case.rule is None else f"{case.expect} by {case.rule}",
        found=f"{verdict} by {rule}",
        reason=found.reason if isinstance(found, Decision) else None,
    )
