"""Records and events as rows of SQLite: ids as bytes, words as codes, times filled in.

differs from postgres: a row is written whole and by itself, by a statement that names just the
columns that its change touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.execution_policy import needs_key, policy_key
from holdfast.lifecycle.record import NO_FACTS, Draft, DraftEvent, Job, JobId, LoggedEvent
from holdfast.lifecycle.seal import seal
from holdfast.lifecycle.times import After, resolve
from holdfast.stores.columns import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    WRITE,
    Dictionary,
    created_text,
    facts_text,
    read_event,
    read_job,
    tuple_text,
    write_job,
)
from holdfast.stores.schema_sql import MOVING
from holdfast.stores.sql_files import statements, without_comment

Row: TypeAlias = tuple[Any, ...]
SQL = statements("sqlite")
_ID, _PARENT = JOB_COLUMNS.index("id"), JOB_COLUMNS.index("parent_id")
_BODY, _DIGEST = EVENT_COLUMNS.index("body"), EVENT_COLUMNS.index("digest")


VARYING = (*(name for name in MOVING if name not in ("rev", "updated_at", "version")), "policy")
"""What a change may touch, beside `rev` and `updated_at`, which every change does."""

ORDINARY_COLUMNS = (
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
"""What an ordinary fold touches at most: the bulk of all commits."""


@cache
def fragment(name: str, **parts: str) -> str:
    """Put a statement together: the named block without its comment, `:words` filled in."""
    text = without_comment(SQL[name])
    for word, part in parts.items():
        text = text.replace(f":{word}", part)
    return text


def job_id(id: bytes) -> JobId:
    """Read an id as it is stored."""
    return JobId(UUID(bytes=id))


def split_ids(ids: bytes) -> list[JobId]:
    """Read the ids of a claim: 16 bytes each, one after the other."""
    return [job_id(ids[i : i + 16]) for i in range(0, len(ids), 16)]


def job_of(row: Sequence[Any], seen: Dictionary) -> Job:
    """Make a record out of a job row; what it names is known."""
    values = list(row)
    values[_ID] = job_id(values[_ID])
    if values[_PARENT] is not None:
        values[_PARENT] = job_id(values[_PARENT])
    return read_job(values, seen)


def event_of(row: Sequence[Any], seen: Dictionary) -> LoggedEvent:
    """Make an event out of an event row; what it names is known."""
    values = list(row)
    values[0] = job_id(values[0])
    return read_event(values, seen)


def _code(word: Any) -> int | None:
    return None if word is None else word.code


def _bytes(id: UUID | None) -> bytes | None:
    return None if id is None else id.bytes


class TouchedColumns(Struct, frozen=True):
    """How changes that touch the same columns are written."""

    plain: str
    fenced: str
    values: Callable[[Job], Row]
    written: tuple[tuple[int, Callable[[Any], Any]], ...]

    def row(self, job: Job, id: bytes, expected: int) -> list[Any]:
        """Write the id of the row to set, the revision to set it from, and the values."""
        values = [id, expected, *self.values(job)]
        for i, write in self.written:
            values[i] = write(values[i])
        return values


@cache
def make_touched_columns(columns: tuple[str, ...]) -> TouchedColumns:
    """Make the two statements that set these columns."""
    names = ("rev", "updated_at", *columns)
    parts = {
        "names": ", ".join(names),
        "marks": ", ".join("?" * len(names)),
        "columns": ", ".join(name + " = d." + name for name in names),
    }
    return TouchedColumns(
        plain=fragment("commit", **parts),
        fenced=fragment("commit_fenced", **parts),
        values=attrgetter(*names),
        written=tuple((i, WRITE[name]) for i, name in enumerate(names, 2) if name in WRITE),
    )


def list_touched(before: Draft, after: Draft) -> tuple[str, ...]:
    """Name the columns that differ."""
    return tuple(
        name
        for name, old, new in zip(VARYING, _varying(before), _varying(after), strict=True)
        if old is not new and old != new
    )


_varying = attrgetter(*VARYING)


def submit_row(job: Job, id: bytes) -> Row:
    """Write a new job for the statement `submit`; `id` is the job's, as it is stored."""
    return (
        id,
        job.created_at,
        job.updated_at,
        job.run_at,
        job.deadline_at,
        needs_key(job.needs),
        policy_key(job.policy),
        job.cpus,
        job.memory_mb,
        job.step_index,
        job.state.code,
        job.kind.code,
        job.priority.code,
        job.key_kinds,
        _code(job.link_kind),
        _bytes(job.parent_id),
        job.tenant,
        job.task,
        job.task_version,
        job.queue,
        job.job_id,
        job.workflow_id,
        tuple_text(job.held_by),
    )


def alike_row(job: Job) -> Row:
    """Write what alike jobs share for the statement `submit_alike`."""
    return (
        job.created_at,
        job.updated_at,
        job.run_at,
        job.deadline_at,
        needs_key(job.needs),
        policy_key(job.policy),
        job.cpus,
        job.memory_mb,
        job.step_index,
        job.state.code,
        job.kind.code,
        job.priority.code,
        job.tenant,
        job.task,
        job.task_version,
        job.queue,
        job.workflow_id,
    )


def alike_event(event: DraftEvent, now: int) -> Row:
    """Write what the first events of alike jobs share for the statement `alike_event`."""
    return (
        event.to_state.code,
        now,
        resolve(event.run_at, now),
        resolve(event.deadline_at, now),
        event.actor,
        event.reason,
        event.correlation_id,
        created_text(event),
    )


def make_event_row(event: DraftEvent, id: bytes, base: int, floor: int) -> Row:
    """Write an event for the statement `event`, not sealed; `id` is the job's, as it is stored.

    `base` is the clock, but not before `floor`, the time of the job's last event. Only `at` may
    lie before the clock: a start is written with the commit that follows it.
    """
    at, lease, run_at, deadline = event.at, event.lease_expires_at, event.run_at, event.deadline_at
    source, body, facts = event.from_state, event.body, event.facts
    if event.created is not None:
        data: str | None = created_text(event)
    else:
        data = None if facts is NO_FACTS else facts_text(facts)
    return (
        id,
        event.rev,
        event.type.code,
        None if source is None else source.code,
        event.to_state.code,
        max(base + at.micros, floor) if type(at) is After and at.micros else base,
        event.attempt,
        event.beats,
        base + lease.micros if type(lease) is After else lease,
        base + run_at.micros if type(run_at) is After else run_at,
        base + deadline.micros if type(deadline) is After else deadline,
        event.version,
        event.actor,
        event.request_id,
        event.reason,
        event.correlation_id,
        data,
        None if body is None else body.decode(),
        event.digest,
        None,
    )


def sealed(row: Row, before: bytes | None) -> Row:
    """Add its seal to an event row; the body is sealed by its digest."""
    return (*row[:-1], seal(before, (*row[:_BODY], row[_DIGEST])))


def beat_row(row: Row) -> Row:
    """Turn an event row into one for the statement `commit_beats`."""
    id_, rev, kind, _, state, at, attempt, _, lease = row[:9]
    actor, request_id, reason = row[12:15]
    return (id_, rev, kind, state, at, attempt, lease, actor, request_id, reason, row[-1])


def job_row(job: Job) -> Row:
    """Write a whole record in the order of `JOB_COLUMNS`."""
    row = list(write_job(job))
    row[_ID], row[_PARENT] = job.id.bytes, _bytes(job.parent_id)
    return tuple(row)
