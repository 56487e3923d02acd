"""A commit as arrays: what is each job's own, and once per shape what many jobs share.

The commit statement of queries.sql reads them in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from holdfast.lifecycle.states import BEATS, EventType
from holdfast.lifecycle.times import After, encode
from holdfast.stores.batch import Fold, rest_of
from holdfast.stores.columns import facts_text
from holdfast.stores.postgres.arrays import dense
from holdfast.stores.text import blocks

PACKAGE = "holdfast.stores.postgres"
FENCED, STARTS, STARTED_LAST, RESULT = 1, 2, 4, 8
"""Flags of a shape, as the statement reads them."""
_STARTED = EventType.STARTED
_json = msgspec.json.Encoder(enc_hook=str).encode


class CommitArrays(NamedTuple):
    """The arguments of a commit, and which parts of the statement they need."""

    arguments: list[Any]
    rest: bool
    beats: bool
    marks: bool
    terms: bool
    signals: bool


class Shape(NamedTuple):
    """What jobs of a batch may share: how their row moves, and what their events say."""

    tenant: str
    queue: str
    expected: int
    source: Any
    target: Any
    flags: int
    beats: int
    lease: int | None
    timeout: int | None
    events: tuple[tuple[Any, ...], ...]


class Shapes:
    """The shapes of a batch, numbered from 1."""

    def __init__(self) -> None:
        """Know none yet."""
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._last: tuple[Any, ...] | None = None
        self._number = 0

    def number(self, shape: tuple[Any, ...]) -> int:
        """Number a shape, given as the plain tuple of its fields."""
        # Neighbours mostly have the same, and to compare is quicker than to look up.
        if shape != self._last:
            self._last = shape
            self._number = self._numbers.setdefault(shape, len(self._numbers) + 1)
        return self._number

    def all(self) -> list[Shape]:
        """List them by number."""
        return [Shape(*shape) for shape in self._numbers]


_SHAPE = 1
"""Where a job's row has the number of its shape."""


@cache
def commit_sql(
    *,
    rest: bool,
    beats: bool,
    marks: bool = False,
    terms: bool = False,
    signals: bool = False,
) -> str:
    """Write the commit with the parts that a batch needs."""
    sql = blocks(PACKAGE)
    text = sql["commit"].replace(":beats", sql["commit_beats"] if beats else "")
    text = text.replace(":marks", sql["commit_marks"] if marks or signals else "")
    text = text.replace(":signals", sql["commit_signals"] if signals else "")
    if rest:
        parts = sql["commit_rest"].replace(":terms", sql["commit_terms"] if terms else "")
        return text.replace(":rest", parts)
    # The planner drops what is NULL.
    return text.replace(":rest", "").replace("d.rest", "NULL::jsonb")


def commit_arrays(folds: Sequence[Fold], request_id: str) -> CommitArrays:
    """Lay a commit out."""
    numbers = Shapes()
    rows = [_job_row(fold, numbers) for fold in folds]
    shapes = numbers.all()
    by_job = [dense(list(column)) for column in zip(*rows, strict=True)]
    if len(shapes) == 1:
        by_job[_SHAPE] = []
    rare = [one for one in folds if not one.ordinary]
    marks = [(one.id, *mark) for one in rare for mark in one.marks]
    signals = [(one.id, *signal) for one in rare for signal in one.signals]
    arguments = [*by_job, *_shape_arrays(shapes, request_id)]
    if marks or signals:
        arguments += _three(marks)
    if signals:
        arguments += _three(signals)
    return CommitArrays(
        arguments,
        rest=bool(by_job[-1]),
        beats=any(event[0] in BEATS for shape in shapes for event in shape.events),
        marks=bool(marks),
        terms=any(one.corrects for one in rare),
        signals=bool(signals),
    )


def _three(rows: Sequence[tuple[Any, Any, Any]]) -> list[list[Any]]:
    """Turn rows of three into columns."""
    return [[row[i] for row in rows] for i in range(3)]


def _job_row(fold: Fold, shapes: Shapes) -> tuple[Any, ...]:
    """Lay out what is a job's own, and number its shape."""
    changes = fold.changes
    before, after, last = changes[0].record, changes[-1].next, changes[-1].event
    flags, origin, started, time = 0, 0, None, after.started_at
    if time is not before.started_at and type(time) is After:
        flags, origin, started = STARTS, time.micros, time.micros
    if last.type is _STARTED:
        flags |= STARTED_LAST
    if after.result_digest is not before.result_digest and after.result_digest is last.digest:
        flags |= RESULT
    lease, rare = None, not fold.ordinary
    events = []
    for change in changes:
        event = change.event
        span: Any = event.lease_expires_at
        if type(span) is After:
            span = span.micros - origin
        elif span is not None:
            # The lease that the job had: an instant of its own, which the shape writes as 0.
            lease, span = span, 0
        events.append(
            (
                event.type,
                event.from_state,
                event.to_state,
                event.at.micros < 0,  # type: ignore[union-attr]  # the law has no clock
                event.attempt,
                event.beats,
                span,
                None if event.run_at is None else encode(event.run_at),
                event.actor,
                event.request_id,
                event.reason,
                None if event is last or fold.ordinary else facts_text(event.facts),
            )
        )
        if change.fenced:
            flags |= FENCED
        if event.body is not None and event is not last:
            rare = True
    shape = (
        before.tenant,
        before.queue,
        before.rev,
        before.state,
        after.state,
        flags,
        after.beats,
        _span(after.lease_expires_at, before.lease_expires_at, origin),
        _span(after.timeout_at, before.timeout_at, origin),
        tuple(events),
    )
    return (
        before.id,
        shapes.number(shape),
        started,
        before.updated_at if flags & STARTED_LAST else None,
        lease,
        None if fold.ordinary else facts_text(last.facts),
        None if last.body is None else last.body.decode(),
        last.digest,
        _rest(fold) if rare else None,
    )


def _span(after: Any, before: Any, origin: int) -> int | None:
    """A time that this write grants, counted from its start."""
    return after.micros - origin if after is not before and type(after) is After else None


def _rest(fold: Fold) -> str | None:
    """What most writes leave alone: rare columns, and bodies of events that are not the last."""
    before, after = fold.first.record, fold.last.next
    rest = rest_of(before, after) or {}
    early = [change.event for change in fold.changes[:-1]]
    bodies = {n: event.body.decode() for n, event in enumerate(early, 1) if event.body is not None}
    if bodies:
        rest["bodies"] = bodies
        rest["digests"] = {n: (early[n - 1].digest or b"").hex() for n in bodies}
    result = after.result_digest
    if result and result is not before.result_digest and result is not fold.last.event.digest:
        rest["result_digest"] = result.hex()
    return _json(rest).decode() if rest else None


def _shape_arrays(shapes: Sequence[Shape], request_id: str) -> list[Any]:
    """Lay out what the jobs of each shape share: their row, their events, the summaries."""
    firsts: list[int] = []
    events: list[tuple[Any, ...]] = []
    for shape in shapes:
        firsts.append(len(events))
        events += shape.events
    (types, sources, targets, timed, attempts, beats, leases, run_ats, actors, requests, reasons,
     data) = map(list, zip(*events, strict=True))  # fmt: skip
    actor = actors[0]
    return [
        [shape.expected for shape in shapes],
        [shape.target.code for shape in shapes],
        [shape.flags for shape in shapes],
        [len(shape.events) for shape in shapes],
        [shape.beats for shape in shapes],
        [shape.lease for shape in shapes],
        [shape.timeout for shape in shapes],
        firsts,
        max(len(shape.events) for shape in shapes),
        [kind.code for kind in types],
        [state.code for state in sources],
        [state.code for state in targets],
        timed,
        attempts,
        beats,
        leases,
        dense(run_ats),
        [] if all(one == actor for one in actors) else actors,
        dense(requests),
        dense(reasons),
        dense(data),
        actor,
        request_id,
        *_count_arrays(shapes),
    ]


def _count_arrays(shapes: Sequence[Shape]) -> list[Any]:
    """Number the moves that the summaries count; 0 is none."""
    moves: dict[tuple[Any, ...], int] = {}
    numbers = []
    for shape in shapes:
        move = (shape.tenant, shape.queue, shape.source.code, shape.target.code)
        moved = shape.source is not shape.target
        numbers.append(moves.setdefault(move, len(moves) + 1) if moved else 0)
    return [numbers, *([list(column) for column in zip(*moves, strict=True)] or [[]] * 4)]
