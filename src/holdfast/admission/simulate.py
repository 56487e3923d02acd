"""What another book would have decided on jobs that were decided on before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.admission.book import Book
from holdfast.admission.verdicts import judge, verdict_name

EXAMPLES = 5
"""How many jobs are named for each change."""


class RecordedBirth(Struct, frozen=True, kw_only=True):
    """A job that was born, and what was decided on it then."""

    job: str
    variables: Mapping[str, Any]
    """See `variables.recorded_variables`."""
    verdict: str
    """`allow` for a job that no rules were asked about."""
    rule: str | None = None
    at: int | None = None
    """When it was born."""


class Changed(Struct, frozen=True, kw_only=True):
    """The jobs on which one rule of the new book would decide otherwise."""

    rule: str | None
    """The id in the new book; None: its default."""
    before: str
    after: str
    count: int
    examples: tuple[str, ...]


class Simulation(Struct, frozen=True, kw_only=True):
    """What would change."""

    rules: str
    """The digest of the new book."""
    judged: int
    changed: tuple[Changed, ...]
    """The most frequent first."""
    verdicts: dict[str, int]
    """How often the new book decides what."""


def simulate(book: Book, births: Iterable[RecordedBirth]) -> Simulation:
    """Return what a book would have decided otherwise, each job judged at its own time."""
    verdicts: dict[str, int] = {}
    groups: dict[tuple[str | None, str, str], list[str]] = {}
    counts: dict[tuple[str | None, str, str], int] = {}
    for birth in births:
        found = judge(book, birth.variables, now=birth.at)
        after = verdict_name(found)
        verdicts[after] = verdicts.get(after, 0) + 1
        if after != birth.verdict:
            key = (found.rule, birth.verdict, after)
            counts[key] = counts.get(key, 0) + 1
            examples = groups.setdefault(key, [])
            if len(examples) < EXAMPLES:
                examples.append(birth.job)
    changed = [
        Changed(rule=key[0], before=key[1], after=key[2], count=count, examples=tuple(groups[key]))
        for key, count in counts.items()
    ]
    return Simulation(
        rules=book.digest,
        judged=sum(verdicts.values()),
        changed=tuple(sorted(changed, key=lambda one: -one.count)),
        verdicts=verdicts,
    )
