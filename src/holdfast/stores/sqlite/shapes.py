"""Shapes of a commit: which columns a change touches, and the statement that sets just these."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from msgspec import Struct

from holdfast.lifecycle.job import Draft, Job
from holdfast.lifecycle.states import BEATS, EventType
from holdfast.stores.sqlite.rows import WRITTEN, Row
from holdfast.stores.sqlite.session import fragment

VARYING = (
    "state",
    "beats",
    "attempt",
    "failures",
    "releases",
    "epoch",
    "owner",
    "lease_expires_at",
    "timeout_at",
    "run_at",
    "held_by",
    "cancel_requested",
    "wait_for",
    "pending_signals",
    "late_results",
    "lost_owner",
    "started_at",
    "finished_at",
    "result_digest",
    "error_code",
    "exit_code",
    "result_ptr",
    "letter",
    "retention",
    "policy",
)
"""What a change may touch, beside `rev` and `updated_at`, which every change does."""

ORDINARY_EVENTS = frozenset({EventType.STARTED, EventType.SUCCEEDED, EventType.PROGRESSED, *BEATS})
ORDINARY = (
    "state",
    "beats",
    "epoch",
    "owner",
    "lease_expires_at",
    "timeout_at",
    "started_at",
    "finished_at",
    "result_digest",
)
"""What these events touch at most, if they say nothing further: the bulk of all commits."""


class Shape(Struct, frozen=True):
    """How changes that touch the same columns are written."""

    plain: str
    fenced: str
    values: Callable[[Job], Row]
    written: tuple[tuple[int, Callable[[Any], Any]], ...]

    def row(self, job: Job, id: bytes, expected: int) -> list[Any]:
        """Write whose row is set, from which revision on, and to what."""
        values = [id, expected, *self.values(job)]
        for i, write in self.written:
            values[i] = write(values[i])
        return values


@cache
def shape_of(columns: tuple[str, ...]) -> Shape:
    """Make the two statements that set these columns."""
    names = ("rev", "updated_at", *columns)
    parts = {
        "names": ", ".join(names),
        "marks": ", ".join("?" * len(names)),
        "columns": ", ".join(name + " = d." + name for name in names),
    }
    return Shape(
        plain=fragment("commit", **parts),
        fenced=fragment("commit_fenced", **parts),
        values=attrgetter(*names),
        written=tuple((i, WRITTEN[name]) for i, name in enumerate(names, 2) if name in WRITTEN),
    )


def touched(before: Draft, after: Draft) -> tuple[str, ...]:
    """Name the columns that differ."""
    return tuple(
        name
        for name, old, new in zip(VARYING, _varying(before), _varying(after), strict=True)
        if old is not new and old != new
    )


_varying = attrgetter(*VARYING)
