"""Commit: compare-and-set writes of decided changes, each with its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.family import KIN
from holdfast.lifecycle.job import NO_FACTS, Change, Job, JobId, LoggedEvent
from holdfast.lifecycle.rebase import has_landed
from holdfast.lifecycle.states import BEATS
from holdfast.lifecycle.submit import freed_keys
from holdfast.ports import (
    LOCKED_EVENTS,
    Committed,
    DecideLocked,
    Lost,
    Outcome,
    Rejected,
    SubmitRefused,
)
from holdfast.stores.batch import STALE, Fold, fold, stamp
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.cursors import LAST_REV
from holdfast.stores.quarantine import STRAY_EVENT, unreadable
from holdfast.stores.sqlite.connections import DATA_ERRORS, translate
from holdfast.stores.sqlite.rows import Row, beat_row, event_row, sealed
from holdfast.stores.sqlite.shapes import ORDINARY, ORDINARY_EVENTS, Shape, shape_of, touched
from holdfast.stores.sqlite.submit import submit
from holdfast.stores.sqlite.turn import Turn

_BEAT_CODES = frozenset(kind.code for kind in BEATS)


class Missed(Exception):
    """Some compare-and-set of a batch missed, or jobs hang on it that may be refused."""


class Refused(Exception):
    """A job that hangs on a change was refused, and so is the change."""

    def __init__(self, refusal: SubmitRefused) -> None:
        """Keep why."""
        super().__init__(refusal.message)
        self.refusal = refusal


class Write(Struct, frozen=True, gc=False):
    """One fold, laid out: how and to what its row is set, and the rows of its events."""

    fold: Fold
    job: Job
    shape: Shape
    row: list[Any]
    fenced: bool
    events: list[Row]
    ordinary: bool
    """Nothing hangs on it but the summaries, and keys if there are any."""


def commit(turn: Turn, changes: Sequence[Change]) -> list[Outcome]:
    """Write a batch at once; where one misses or is bad, go through them one by one."""
    folds, numbers = fold(changes)
    try:
        with turn.alone():
            writes = [_lay_out(turn, one) for one in folds]
            _write(turn, writes)
            outcomes: list[Outcome] = [Committed(write.job) for write in writes]
    except (Missed, Refused, *DATA_ERRORS):
        outcomes = [_commit_one(turn, one) for one in folds]
    if STALE not in numbers:
        return [outcomes[number] for number in numbers]
    return [
        _lost(turn, change.id) if number == STALE else outcomes[number]
        for number, change in zip(numbers, changes, strict=True)
    ]


def _lost(turn: Turn, id: JobId) -> Outcome:
    """Tell what stands where a change missed; a damaged job is set aside."""
    try:
        return Lost(turn.get(id.bytes))
    except JobUnreadable as error:
        turn.set_aside({id: error.damage})
        return Rejected(code=error.code, message=str(error))


def commit_locked(turn: Turn, id: JobId, decide: DecideLocked, after: int | None) -> Outcome:
    """Decide on a job's current record and commit: this transaction is the only writer."""
    found = _lost(turn, id)
    if not isinstance(found, Lost) or found.current is None:
        return found
    events: list[LoggedEvent] = []
    if after is not None:
        events = turn.events("events", (id.bytes, after, LOCKED_EVENTS + 1, LAST_REV))
    changes = decide(found.current, events) if len(events) <= LOCKED_EVENTS else ()
    return commit(turn, changes)[-1] if changes else found


def _lay_out(turn: Turn, one: Fold) -> Write:
    changes, now = one.changes, turn.now
    before, after = changes[0].record, changes[-1].next
    # A matching rev proves that the row's time is the one that the change was decided on.
    floor: Any = before.updated_at
    id_ = before.id.bytes
    base = now if now > floor else floor
    ordinary, fenced = before.link_kind not in KIN, False
    events = []
    for change in changes:
        event = change.event
        if event.facts is not NO_FACTS or event.type not in ORDINARY_EVENTS:
            ordinary = False
        if change.fenced:
            fenced = True
        events.append(event_row(event, id_, base, floor))
    shape = shape_of(ORDINARY if ordinary else touched(before, after))
    job = stamp(after, now, floor)
    return Write(one, job, shape, shape.row(job, id_, before.rev), fenced, events, ordinary)


def _write(turn: Turn, writes: Sequence[Write]) -> None:
    """Set the rows and append the events; raises if any compare-and-set missed."""
    if len(writes) > 1 and any(not write.ordinary and write.fold.submits for write in writes):
        raise Missed
    _update(turn, writes)
    _append(turn, writes)
    _keep_signals(turn, writes)
    _count(turn, writes)
    for write in writes:
        if write.job.key_kinds and (freed := freed_keys(write.fold.first.record, write.job)):
            turn.write("free_keys", [(write.job.id.bytes, freed)])
        if not write.ordinary:
            _follow_up(turn, write)


def _update(turn: Turn, writes: Sequence[Write]) -> None:
    """Set the rows, those of one shape by one statement."""
    plain: dict[str, list[list[Any]]] = {}
    fenced: dict[str, list[list[Any]]] = {}
    for write in writes:
        if write.fenced:
            fenced.setdefault(write.shape.fenced, []).append(write.row)
        else:
            plain.setdefault(write.shape.plain, []).append(write.row)
    for statements, fence in ((plain, ()), (fenced, (turn.now, turn.epoch))):
        for sql, rows in statements.items():
            if turn.write_text(sql, rows, fence) != len(rows):
                raise Missed


def _append(turn: Turn, writes: Sequence[Write]) -> None:
    """Append the events; heartbeats go apart."""
    events = [row for write in writes for row in write.events]
    if turn.sealing:
        events = [row for write in writes for row in _sealed(turn, write)]
    beats = [beat_row(row) for row in events if row[2] in _BEAT_CODES]
    if beats:
        events = [row for row in events if row[2] not in _BEAT_CODES]
        turn.write("beat", beats)
    turn.write("event", events)


def _sealed(turn: Turn, write: Write) -> list[Row]:
    rows = []
    before = turn.last_seal(write.job.id.bytes)
    for row in write.events:
        rows.append(sealed(row, before))
        if row[2] not in _BEAT_CODES:
            before = rows[-1][-1]
    return rows


def _keep_signals(turn: Turn, writes: Sequence[Write]) -> None:
    """Keep the signals that became pending, and drop those that were consumed."""
    rows = [
        (write.job.id.bytes, rev, name)
        for write in writes
        if not write.ordinary
        for rev, name in write.fold.signals
    ]
    if rows:
        turn.write("add_signals", [row for row in rows if row[2] is not None])
        turn.write("drop_signals", [row[:2] for row in rows if row[2] is None])


def _count(turn: Turn, writes: Sequence[Write]) -> None:
    moves = Counter(
        (job.tenant, job.queue, before, job.state)
        for write in writes
        if (job := write.job).state is not (before := write.fold.changes[0].record.state)
    )
    for (tenant, queue, before, after), jobs in moves.items():
        turn.count(tenant, queue, before.code, -jobs)
        turn.count(tenant, queue, after.code, jobs)


def _follow_up(turn: Turn, write: Write) -> None:
    """Write what else hangs on an accepted change: an adopter's claim, marks, jobs it submits."""
    if write.job.policy != write.fold.first.record.policy:
        turn.remember([write.job])
    if write.fold.adopts:
        turn.write("add_claims", [(write.job.id.bytes,)])
    for marked, certain in write.fold.marks:
        turn.write("mark" if certain else "mark_parent", [(marked.bytes,)])
    turn.wake(write.job)
    for outcome in submit(turn, write.fold.submits):
        if isinstance(outcome, SubmitRefused):
            raise Refused(outcome)


def _commit_one(turn: Turn, one: Fold) -> Outcome:
    try:
        with turn.alone():
            write = _lay_out(turn, one)
            _write(turn, [write])
            return Committed(write.job)
    except Missed:
        return _settle(turn, one)
    except Refused as error:
        return Rejected(code=error.refusal.code, message=error.refusal.message)
    except DATA_ERRORS as error:
        if (stray := _stray_event(turn, one)) is not None:
            turn.set_aside({one.id: stray})
            return Rejected(code=JobUnreadable.code, message=str(unreadable(one.id, stray)))
        told = translate(error)
        return Rejected(code=getattr(told, "code", "bad_data"), message=str(told))


def _stray_event(turn: Turn, one: Fold) -> str | None:
    """Tell whether the log is ahead of the row: then no change of this job can be written."""
    row = turn.row("get", (one.id.bytes,))
    if row is None or row[_REV] != one.expected:
        return None
    for rev in range(one.expected + 1, one.last.event.rev + 1):
        if turn.row("event_at", (one.id.bytes, rev)) is not None:
            return STRAY_EVENT.format(rev=rev)
    return None


_REV = JOB_COLUMNS.index("rev")


def _settle(turn: Turn, one: Fold) -> Outcome:
    """Tell of a miss whether its write had landed before, and what stands there now."""
    lost = _lost(turn, one.id)
    if not isinstance(lost, Lost) or lost.current is None:
        return lost
    found = turn.readable_events(turn.rows("event_at", (one.id.bytes, one.last.event.rev)))
    if found and has_landed(one.last, found[0]):
        return Committed(lost.current, repeated=True)
    return lost
