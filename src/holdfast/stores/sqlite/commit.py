"""Commit: compare-and-set writes of decided changes, each with its events.

differs from postgres: the writer is alone, so a row is never locked, and a batch in which one
change misses is undone and written again one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.holds import listed_holds
from holdfast.lifecycle.keys import freed_keys
from holdfast.lifecycle.rebase import has_landed
from holdfast.lifecycle.record import Change, Draft, Job, JobId, LoggedEvent
from holdfast.lifecycle.stamp import stamp
from holdfast.lifecycle.states import BEATS
from holdfast.ports.models import (
    LOCKED_EVENTS,
    Committed,
    DecideLocked,
    Lost,
    Outcome,
    Rejected,
    SubmitRefused,
)
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.cursors import LAST_REV
from holdfast.stores.fold import STALE, Fold, fold
from holdfast.stores.outcomes import ChildRefused, rejected_as_unreadable
from holdfast.stores.quarantine import STRAY_EVENT
from holdfast.stores.sqlite.connections import DATA_ERRORS, translate_error
from holdfast.stores.sqlite.rows import (
    ORDINARY_COLUMNS,
    Row,
    TouchedColumns,
    beat_row,
    list_touched,
    make_event_row,
    make_touched_columns,
    sealed,
)
from holdfast.stores.sqlite.submit import submit
from holdfast.stores.sqlite.turn import Turn

_BEAT_CODES = frozenset(kind.code for kind in BEATS)
_REV = JOB_COLUMNS.index("rev")


class _Missed(Exception):
    """Some compare-and-set of a batch missed, or jobs depend on it that may be refused."""


class _Write(Struct, frozen=True, gc=False):
    """One fold, laid out: how and to what its row is set, and the rows of its events."""

    fold: Fold
    job: Job
    columns: TouchedColumns
    row: list[Any]
    fenced: bool
    events: list[Row]


def commit(turn: Turn, changes: Sequence[Change]) -> list[Outcome]:
    """Write a batch at once; where one misses or is bad, go through them one by one."""
    folds, numbers = fold(changes)
    try:
        with turn.in_savepoint():
            writes = [_lay_out_write(turn, one) for one in folds]
            _write_rows_and_events(turn, writes)
            outcomes: list[Outcome] = [Committed(write.job) for write in writes]
    except (_Missed, ChildRefused, *DATA_ERRORS):
        outcomes = [_commit_apart(turn, one) for one in folds]
    if STALE not in numbers:
        return [outcomes[number] for number in numbers]
    return [
        _read_after_miss(turn, change.id) if number == STALE else outcomes[number]
        for number, change in zip(numbers, changes, strict=True)
    ]


def _read_after_miss(turn: Turn, id: JobId) -> Outcome:
    """Return what stands where a change missed; a damaged job is set aside."""
    try:
        return Lost(turn.get(id))
    except JobUnreadable as error:
        return _set_aside(turn, id, error.damage)


def _set_aside(turn: Turn, id: JobId, reason: str) -> Rejected:
    turn.set_aside({id: reason})
    return rejected_as_unreadable({id: reason})[id]


def commit_locked(turn: Turn, id: JobId, decide: DecideLocked, after: int | None) -> Outcome:
    """Decide on a job's current record and commit: this transaction is the only writer."""
    found = _read_after_miss(turn, id)
    if not isinstance(found, Lost) or found.current is None:
        return found
    events: list[LoggedEvent] = []
    if after is not None:
        events = turn.events(turn.rows("events", id, after, LOCKED_EVENTS + 1, LAST_REV))
    changes = decide(found.current, events) if len(events) <= LOCKED_EVENTS else ()
    return commit(turn, changes)[-1] if changes else found


def _lay_out_write(turn: Turn, one: Fold) -> _Write:
    changes, now = one.changes, turn.now
    before, after = changes[0].record, changes[-1].next
    # A matching rev proves that the row's time is the one that the change was decided on.
    floor: Any = before.updated_at
    id_ = before.id.bytes
    base = now if now > floor else floor
    fenced = False
    events = []
    for change in changes:
        if change.fenced:
            fenced = True
        events.append(make_event_row(change.event, id_, base, floor))
    columns = make_touched_columns(
        ORDINARY_COLUMNS if one.ordinary else list_touched(before, after)
    )
    job = stamp(after, now, floor)
    return _Write(one, job, columns, columns.row(job, id_, before.rev), fenced, events)


def _write_rows_and_events(turn: Turn, writes: Sequence[_Write]) -> None:
    """Set the rows and append the events; raises if any compare-and-set missed."""
    if len(writes) > 1 and any(not write.fold.ordinary and write.fold.submits for write in writes):
        raise _Missed
    _update_rows(turn, writes)
    _append_events(turn, writes)
    _keep_signals(turn, writes)
    _count_states(turn, writes)
    for write in writes:
        if write.job.key_kinds and (freed := freed_keys(write.fold.first.record, write.job)):
            turn.write("free_keys", [(write.job.id.bytes, freed)])
        if not write.fold.ordinary:
            _write_dependents(turn, write)


def _update_rows(turn: Turn, writes: Sequence[_Write]) -> None:
    """Set the rows, those that set the same columns by one statement."""
    plain: dict[str, list[list[Any]]] = {}
    fenced: dict[str, list[list[Any]]] = {}
    for write in writes:
        if write.fenced:
            fenced.setdefault(write.columns.fenced, []).append(write.row)
        else:
            plain.setdefault(write.columns.plain, []).append(write.row)
    for statements, fence in ((plain, ()), (fenced, (turn.now, turn.epoch))):
        for sql, rows in statements.items():
            if turn.write_text(sql, rows, fence) != len(rows):
                raise _Missed


def _append_events(turn: Turn, writes: Sequence[_Write]) -> None:
    """Append the events; heartbeats go apart."""
    events = [row for write in writes for row in write.events]
    if turn.sealing:
        events = [row for write in writes for row in _seal_events(turn, write)]
    beats = [beat_row(row) for row in events if row[2] in _BEAT_CODES]
    if beats:
        events = [row for row in events if row[2] not in _BEAT_CODES]
        turn.write("commit_beats", beats)
    turn.write("event", events)


def _seal_events(turn: Turn, write: _Write) -> list[Row]:
    rows = []
    before = turn.last_seal(write.job.id.bytes)
    for row in write.events:
        rows.append(sealed(row, before))
        if row[2] not in _BEAT_CODES:
            before = rows[-1][-1]
    return rows


def _keep_signals(turn: Turn, writes: Sequence[_Write]) -> None:
    """Keep the signals that became pending, and drop those that were consumed."""
    rows = [
        (write.job.id.bytes, rev, name)
        for write in writes
        if not write.fold.ordinary
        for rev, name in write.fold.signals
    ]
    if rows:
        turn.write("add_signals", [row for row in rows if row[2] is not None])
        turn.write("drop_signals", [row[:2] for row in rows if row[2] is None])


def _count_states(turn: Turn, writes: Sequence[_Write]) -> None:
    moves = Counter(
        (job.tenant, job.queue, before, job.state)
        for write in writes
        if (job := write.job).state is not (before := write.fold.changes[0].record.state)
    )
    for (tenant, queue, before, after), jobs in moves.items():
        turn.count(tenant, queue, before.code, -jobs)
        turn.count(tenant, queue, after.code, jobs)


def _write_dependents(turn: Turn, write: _Write) -> None:
    """Write what depends on an accepted change: holds, a claim, marks, jobs that it submits."""
    if write.job.policy != write.fold.first.record.policy:
        turn.remember([write.job])
    _keep_holds(turn, write.fold.first.record, write.job)
    if write.fold.adopts:
        turn.rows("add_claims", [write.job.id])
    for marked, certain in write.fold.marks:
        turn.write("mark" if certain else "mark_parent", [(marked.bytes,)])
    turn.wake(write.job)
    for outcome in submit(turn, write.fold.submits):
        if isinstance(outcome, SubmitRefused):
            raise ChildRefused(outcome)


def _keep_holds(turn: Turn, before: Draft, after: Job) -> None:
    """List a job under the holds that it has now, and under no other."""
    had, has = listed_holds(before), listed_holds(after)
    if had != has:
        turn.write("drop_holds", [(hold, after.id.bytes) for hold in had - has])
        turn.write("add_holds", [(hold, after.id.bytes) for hold in has - had])


def _commit_apart(turn: Turn, one: Fold) -> Outcome:
    try:
        with turn.in_savepoint():
            write = _lay_out_write(turn, one)
            _write_rows_and_events(turn, [write])
            return Committed(write.job)
    except _Missed:
        return _settle_missed(turn, one)
    except ChildRefused as error:
        return error.rejected
    except DATA_ERRORS as error:
        stray = _find_stray_event(turn, one)
        if stray is not None:
            return _set_aside(turn, one.id, stray)
        refused = translate_error(error)
        return Rejected(code=getattr(refused, "code", "bad_data"), message=str(refused))


def _find_stray_event(turn: Turn, one: Fold) -> str | None:
    """Return whether the log is ahead of the row: then no change of this job can be written."""
    row = turn.row("get", [one.id])
    if row is None or row[_REV] != one.expected:
        return None
    for rev in range(one.expected + 1, one.last.event.rev + 1):
        if turn.row("event_at", one.id, rev) is not None:
            return STRAY_EVENT.format(rev=rev)
    return None


def _settle_missed(turn: Turn, one: Fold) -> Outcome:
    """Return for a miss whether its write had landed before, and what stands there now."""
    lost = _read_after_miss(turn, one.id)
    if not isinstance(lost, Lost) or lost.current is None:
        return lost
    found = turn.readable_events(turn.rows("event_at", one.id, one.last.event.rev))
    if found and has_landed(one.last, found[0]):
        return Committed(lost.current, repeated=True)
    return lost
