"""Commit: compare-and-set writes of decided changes, each with its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from msgspec import Struct

from holdfast.lifecycle.job import Change, Draft, Job
from holdfast.lifecycle.rebase import has_landed
from holdfast.lifecycle.states import BEATS
from holdfast.lifecycle.submit import freed_keys
from holdfast.ports import Committed, Lost, Outcome, Rejected, SubmitRefused
from holdfast.stores.batch import FENCED, STALE, Fold, fold, stamp
from holdfast.stores.sqlite.connections import DATA_ERRORS, translate
from holdfast.stores.sqlite.rows import WRITTEN, Row, beat_row, event_row, sealed
from holdfast.stores.sqlite.session import fragment
from holdfast.stores.sqlite.submit import submit
from holdfast.stores.sqlite.turn import Turn

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
    "signals",
    "late_results",
    "started_at",
    "finished_at",
    "result_digest",
    "error_code",
    "exit_code",
    "result_ptr",
    "letter",
    "retention",
)
"""What a change may touch, beside `rev` and `updated_at`, which every change does."""


class Missed(Exception):
    """Some compare-and-set of a batch missed, or more hangs on it than rows and events."""


class Refused(Exception):
    """A job that hangs on a change was refused, and so is the change."""

    def __init__(self, refusal: SubmitRefused) -> None:
        """Keep why."""
        super().__init__(refusal.message)
        self.refusal = refusal


class Shape(Struct, frozen=True):
    """How changes that touch the same columns are written."""

    plain: str
    fenced: str
    values: Callable[[Job], Row]
    written: tuple[tuple[int, Callable[[Any], Any]], ...]

    def row(self, job: Job) -> list[Any]:
        """Write what is set."""
        values = list(self.values(job))
        for i, write in self.written:
            values[i] = write(values[i])
        return values


@cache
def shape_of(columns: tuple[str, ...]) -> Shape:
    """Make the two statements that set these columns."""
    names = ("rev", "updated_at", *columns)
    assignments = ", ".join(name + " = ?" for name in names)
    return Shape(
        plain=fragment("commit", columns=assignments),
        fenced=fragment("commit_fenced", columns=assignments),
        values=attrgetter(*names),
        written=tuple((i, WRITTEN[name]) for i, name in enumerate(names) if name in WRITTEN),
    )


_varying = attrgetter(*VARYING)


def _changed(before: Draft, after: Draft) -> tuple[str, ...]:
    return tuple(
        name
        for name, old, new in zip(VARYING, _varying(before), _varying(after), strict=True)
        if old is not new and old != new
    )


def commit(turn: Turn, changes: Sequence[Change]) -> list[Outcome]:
    """Write a batch at once; where one misses or is bad, go through them one by one."""
    folds, numbers = fold(changes)
    try:
        with turn.alone():
            outcomes: list[Outcome] = _commit_batch(turn, folds)
    except (Missed, *DATA_ERRORS):
        outcomes = [_commit_one(turn, one) for one in folds]
    return [
        Lost(turn.get(change.id.bytes)) if number == STALE else outcomes[number]
        for number, change in zip(numbers, changes, strict=True)
    ]


def _commit_batch(turn: Turn, folds: Sequence[Fold]) -> list[Outcome]:
    if any(one.submits for one in folds):
        raise Missed
    jobs = [_stamped(turn, one) for one in folds]
    _update(turn, folds, jobs)
    _append(turn, folds)
    for one, job in zip(folds, jobs, strict=True):
        _follow_up(turn, one, job)
    return [Committed(job) for job in jobs]


def _stamped(turn: Turn, one: Fold) -> Job:
    return stamp(one.last.next, turn.now, _floor(one))


def _floor(one: Fold) -> int:
    # A matching rev proves that the row's time is the one that the change was decided on.
    floor = one.first.record.updated_at
    assert isinstance(floor, int)
    return floor


def _update(turn: Turn, folds: Sequence[Fold], jobs: Sequence[Job]) -> None:
    """Set the rows, those of one shape by one statement; raises if any missed."""
    by_sql: dict[str, list[list[Any]]] = {}
    for one, job in zip(folds, jobs, strict=True):
        shape = shape_of(_changed(one.first.record, one.last.next))
        row = shape.row(job)
        if one.flags & FENCED:
            row += (one.id.bytes, one.expected, turn.now, turn.epoch)
            by_sql.setdefault(shape.fenced, []).append(row)
        else:
            row += (one.id.bytes, one.expected)
            by_sql.setdefault(shape.plain, []).append(row)
    for sql, rows in by_sql.items():
        if turn.write_text(sql, rows) != len(rows):
            raise Missed


def _append(turn: Turn, folds: Sequence[Fold]) -> None:
    """Append the events; heartbeats go apart."""
    events: list[Row] = []
    beats: list[Row] = []
    for one in folds:
        floor = _floor(one)
        base = max(turn.now, floor)
        before = turn.last_seal(one.id.bytes) if turn.sealing else None
        for change in one.changes:
            row = event_row(change.event, base, floor)
            row = sealed(row, before) if turn.sealing else (*row, None)
            if change.event.type in BEATS:
                beats.append(beat_row(row))
            else:
                events.append(row)
                before = row[-1]
    if events:
        turn.write("event", events)
    if beats:
        turn.write("beat", beats)


def _follow_up(turn: Turn, one: Fold, job: Job) -> None:
    """Write what hangs on an accepted change: summaries, freed keys, an adopter's claim."""
    before = one.first.record
    if before.state is not job.state:
        turn.count(job.tenant, job.queue, before.state.code, -1)
        turn.count(job.tenant, job.queue, job.state.code)
    if freed := freed_keys(before, one.last.next):
        turn.write("free_keys", [(job.id.bytes, freed)])
    if one.adopts:
        turn.write("add_claims", [(job.id.bytes,)])
    turn.wake(job)


def _commit_one(turn: Turn, one: Fold) -> Outcome:
    try:
        with turn.alone():
            job = _stamped(turn, one)
            _update(turn, [one], [job])
            _append(turn, [one])
            _follow_up(turn, one, job)
            _submit_children(turn, one)
            return Committed(job)
    except Missed:
        return _settle(turn, one)
    except Refused as error:
        return Rejected(code=error.refusal.code, message=error.refusal.message)
    except DATA_ERRORS as error:
        told = translate(error)
        return Rejected(code=getattr(told, "code", "bad_data"), message=str(told))


def _submit_children(turn: Turn, one: Fold) -> None:
    for outcome in submit(turn, one.submits):
        if isinstance(outcome, SubmitRefused):
            raise Refused(outcome)


def _settle(turn: Turn, one: Fold) -> Outcome:
    """Tell of a miss whether its write had landed before, and what stands there now."""
    current = turn.get(one.id.bytes)
    found = turn.events("event_at", (one.id.bytes, one.last.event.rev))
    if current is not None and found and has_landed(one.last, found[0]):
        return Committed(current, repeated=True)
    return Lost(current)
