"""Records and events as rows of SQLite: ids as bytes, words as codes, times filled in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

from holdfast.lifecycle.job import NO_FACTS, DraftEvent, Job
from holdfast.lifecycle.policy import needs_key, policy_key
from holdfast.lifecycle.seal import seal
from holdfast.lifecycle.times import After
from holdfast.stores.columns import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    created_text,
    facts_text,
    number_or_null,
    tuple_text,
    write_job,
)

Row: TypeAlias = tuple[Any, ...]


def _code(word: Any) -> int | None:
    return None if word is None else word.code


def _bytes(id: UUID | None) -> bytes | None:
    return None if id is None else id.bytes


WRITTEN: dict[str, Callable[[Any], Any]] = {
    "state": _code,
    "held_by": tuple_text,
    "cancel_requested": _code,
    "pending_signals": number_or_null,
    "late_results": tuple_text,
    "letter": _code,
    "retention": _code,
    "policy": policy_key,
}
"""How columns that a change may touch are written, where not as they are."""


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


def event_row(event: DraftEvent, id: bytes, base: int, floor: int) -> Row:
    """Write an event for the statement `event`, not sealed; `id` is the job's, as it is stored.

    `base` is the clock, but not before `floor`, the time of the job's last event. Only `at` may
    lie before the clock: a start is told with the commit that follows it.
    """
    at, lease, run_at, deadline = event.at, event.lease_expires_at, event.run_at, event.deadline_at
    source, body, facts = event.from_state, event.body, event.facts
    if event.created is not None:
        data: str | None = created_text(event)
    else:
        data = None if facts is NO_FACTS else facts_text(facts)
    told = max(base + at.micros, floor) if type(at) is After and at.micros else base
    return (
        id,
        event.rev,
        event.type.code,
        None if source is None else source.code,
        event.to_state.code,
        told,
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


_BODY, _DIGEST = EVENT_COLUMNS.index("body"), EVENT_COLUMNS.index("digest")


def sealed(row: Row, before: bytes | None) -> Row:
    """Add its seal to an event row; the body is sealed by its digest."""
    return (*row[:-1], seal(before, (*row[:_BODY], row[_DIGEST])))


def beat_row(row: Row) -> Row:
    """Turn an event row into one for the statement `beat`."""
    id_, rev, kind, _, state, at, attempt, _, lease = row[:9]
    actor, request_id, reason = row[12:15]
    return (id_, rev, kind, state, at, attempt, lease, actor, request_id, reason, row[-1])


def job_row(job: Job) -> Row:
    """Write a whole record in the order of `JOB_COLUMNS`."""
    row = list(write_job(job))
    row[_ID], row[_PARENT] = job.id.bytes, _bytes(job.parent_id)
    return tuple(row)


_ID, _PARENT = JOB_COLUMNS.index("id"), JOB_COLUMNS.index("parent_id")
