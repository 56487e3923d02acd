"""Batches as arrays: what the statements of queries.sql take, in their order.

A row per job holds what is its own; what many jobs share comes once, as a group or a shape that
each job names by number. Rows are read by `stores.columns`: the driver returns ids as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from asyncpg.pgproto.pgproto import UUID as DriverId

from holdfast.lifecycle.alike import AlikeJobs, ask_alike
from holdfast.lifecycle.execution_policy import needs_key, policy_key
from holdfast.lifecycle.plan import Plan, PlannedEnd
from holdfast.lifecycle.record import Draft, DraftEvent, NewJob
from holdfast.lifecycle.states import BEATS
from holdfast.lifecycle.times import NOW, After, encode
from holdfast.lifecycle.transitions import BACKDATED
from holdfast.stores.columns import created_text, facts_text, tuple_text, write_column
from holdfast.stores.fold import Fold

FENCED, STARTS, STARTED_LAST, RESULT = 1, 2, 4, 8
"""Flags of a shape, as the statement reads them."""
_REST = (
    *("owner", "epoch", "failures", "releases", "cancel_requested", "late_results", "lost_owner"),
    *("error_code", "exit_code", "result_ptr", "letter", "retention", "wait_for"),
)
"""Columns that most changes leave alone. A cleared owner, lease or wait is not among them: the
statement works that out from the state."""
_json = msgspec.json.Encoder(enc_hook=str).encode


def dense(column: list[Any]) -> list[Any]:
    """Send a column that is NULL throughout as an empty array."""
    if column and column[0] is not None:
        return column
    return column if column.count(None) < len(column) else []


def submit_arrays(jobs: Sequence[NewJob]) -> list[Any]:
    """Lay out a submit: a row per job, and once per group what its jobs share."""
    numbers: dict[tuple[Any, ...], int] = {}
    texts: list[str] = []
    rows: list[tuple[Any, ...]] = []
    last: DraftEvent | None = None
    number = 0
    for job in jobs:
        event = job.event
        if last is not None and ask_alike(last, event):
            rows.append(_submit_row(job, number, rows[-1][_TEXT]))
            continue
        record, last = job.record, event
        group = (
            needs_key(record.needs),
            policy_key(record.policy),
            record.cpus,
            record.memory_mb,
            record.state.code,
            record.kind.code,
            record.priority.code,
            record.tenant,
            record.task,
            record.task_version,
            record.queue,
            event.actor,
            event.reason,
        )
        text = created_text(event)
        number = numbers.setdefault(group, len(numbers) + 1)
        if number > len(texts):
            texts.append(text)
        rows.append(_submit_row(job, number, None if text == texts[number - 1] else text))
    by_job = [dense(list(column)) for column in zip(*rows, strict=True)]
    return [*by_job, *[list(column) for column in zip(*numbers, strict=True)], texts]


_TEXT = 2
"""Where a job's row has its text."""


def _submit_row(job: NewJob, group: int, text: str | None) -> tuple[Any, ...]:
    """Lay out what is a job's own; its text only where it is not that of its group."""
    record, event = job.record, job.event
    run_at = event.run_at
    return (
        record.id,
        group,
        text,
        None if event.body is None else event.body.decode(),
        event.digest,
        None if run_at is NOW else encode(run_at),
        encode(event.deadline_at),
        event.correlation_id,
        record.job_id,
        record.parent_id,
        record.link_kind and record.link_kind.code,
        record.workflow_id,
        record.step_index,
        record.key_kinds or None,
        tuple_text(record.held_by),
        event.request_id,
    )


def alike_arguments(jobs: AlikeJobs) -> list[Any]:
    """Lay out a submit of alike jobs: three arrays of what is their own, and what they share."""
    record, event = jobs.first.record, jobs.first.event
    return [
        # The driver writes its own kind of id as it is, and would take any other apart.
        list(map(DriverId, jobs.ids)),
        list(map(bytes.decode, jobs.bodies)),
        jobs.digests,
        encode(event.run_at),
        encode(event.deadline_at),
        needs_key(record.needs),
        policy_key(record.policy),
        record.cpus,
        record.memory_mb,
        record.step_index,
        record.state.code,
        record.kind.code,
        record.priority.code,
        record.tenant,
        record.task,
        record.task_version,
        record.queue,
        record.workflow_id,
        event.actor,
        event.reason,
        event.correlation_id,
        created_text(event),
    ]


class CommitArrays(NamedTuple):
    """The arguments of a commit, and which parts of the statement they need."""

    arguments: list[Any]
    rest: bool
    beats: bool
    marks: bool
    terms: bool
    signals: bool


class CommitShape(NamedTuple):
    """What jobs of a batch may share: how their row moves, and what their events hold."""

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


class CommitShapes:
    """The shapes of a batch, numbered from 1."""

    def __init__(self) -> None:
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

    def all(self) -> list[CommitShape]:
        """List them by number."""
        return [CommitShape(*shape) for shape in self._numbers]


_SHAPE = 1
"""Where a job's row has the number of its shape."""


def commit_arrays(folds: Sequence[Fold], request_id: str) -> CommitArrays:
    """Lay a commit out."""
    numbers = CommitShapes()
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


def planned_arrays(ends: Sequence[PlannedEnd], request_id: str) -> list[Any]:
    """Lay planned ends out as a commit of the changes that their plans have decided."""
    numbers: dict[int, int] = {}
    shapes: dict[CommitShape, int] = {}
    for plan in {id(end.plan): end.plan for end in ends}.values():
        # Jobs of two claims have two plans, and mostly one shape.
        numbers[id(plan)] = shapes.setdefault(plan_shape(plan), len(shapes) + 1)
    nothing: list[Any] = []
    return [
        [end.id for end in ends],
        [numbers[id(end.plan)] for end in ends],
        [-end.ago for end in ends],
        nothing,
        nothing,
        nothing,
        [end.body.decode() for end in ends],
        [end.digest for end in ends],
        nothing,
        *_shape_arrays(list(shapes), request_id),
    ]


def plan_shape(plan: Plan) -> CommitShape:
    """Return the shape that all jobs of a plan have."""
    shapes = CommitShapes()
    _job_row(Fold((plan.start, plan.success), ordinary=True), shapes)
    return shapes.all()[0]


def _three(rows: Sequence[tuple[Any, Any, Any]]) -> list[list[Any]]:
    """Turn rows of three into columns."""
    return [[row[i] for row in rows] for i in range(3)]


def _job_row(fold: Fold, shapes: CommitShapes) -> tuple[Any, ...]:
    """Lay out what is a job's own, and number its shape."""
    changes = fold.changes
    before, after, last = changes[0].record, changes[-1].next, changes[-1].event
    flags, origin, started, time = 0, 0, None, after.started_at
    if time is not before.started_at and type(time) is After:
        flags, origin, started = STARTS, time.micros, time.micros
    if last.type in BACKDATED:
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
        _write_rare_parts(fold) if rare else None,
    )


def _span(after: Any, before: Any, origin: int) -> int | None:
    """A time that this write grants, counted from its start."""
    return after.micros - origin if after is not before and type(after) is After else None


def _write_rare_parts(fold: Fold) -> str | None:
    """Write what most commits leave alone: rare columns, bodies of events before the last."""
    before, after = fold.first.record, fold.last.next
    rest = rare_columns(before, after)
    early = [change.event for change in fold.changes[:-1]]
    bodies = {n: event.body.decode() for n, event in enumerate(early, 1) if event.body is not None}
    if bodies:
        rest["bodies"] = bodies
        rest["digests"] = {n: (early[n - 1].digest or b"").hex() for n in bodies}
    result = after.result_digest
    if result and result is not before.result_digest and result is not fold.last.event.digest:
        rest["result_digest"] = result.hex()
    return _json(rest).decode() if rest else None


def rare_columns(before: Draft, after: Draft) -> dict[str, Any]:
    """Return the rarer columns that differ; mostly none does."""
    rest: dict[str, Any] = {}
    for name in _REST:
        value = getattr(after, name)
        if value is not None and value != getattr(before, name):
            rest[name] = write_column(name, value)
    if after.held_by != before.held_by:
        rest["held_by"] = tuple_text(after.held_by) or "[]"
    if after.pending_signals != before.pending_signals:
        rest["pending_signals"] = after.pending_signals
    if after.policy is not before.policy and after.policy != before.policy:
        rest["policy"] = policy_key(after.policy)
    if after.run_at is not before.run_at and after.run_at is not None:
        rest["run_at"] = encode(after.run_at)
    return rest


def _shape_arrays(shapes: Sequence[CommitShape], request_id: str) -> list[Any]:
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


def _count_arrays(shapes: Sequence[CommitShape]) -> list[Any]:
    """Number the moves that the summaries count; 0 is none."""
    moves: dict[tuple[Any, ...], int] = {}
    numbers = []
    for shape in shapes:
        move = (shape.tenant, shape.queue, shape.source.code, shape.target.code)
        moved = shape.source is not shape.target
        numbers.append(moves.setdefault(move, len(moves) + 1) if moved else 0)
    return [numbers, *([list(column) for column in zip(*moves, strict=True)] or [[]] * 4)]
