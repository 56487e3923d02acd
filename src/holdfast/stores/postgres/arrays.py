"""Batches as arrays: what the statements of queries.sql take, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.lifecycle.job import NewJob
from holdfast.lifecycle.policy import needs_key, policy_key
from holdfast.lifecycle.times import After, encode
from holdfast.stores.batch import Fold, code_of, lease_of, rest_of, started_of
from holdfast.stores.columns import created_text, facts_text, tuple_text

_json = msgspec.json.Encoder(enc_hook=str).encode


def dense(column: list[Any]) -> list[Any]:
    """Send a column that is NULL throughout as an empty array."""
    return column if any(value is not None for value in column) else []


def submit_arrays(jobs: Sequence[NewJob]) -> list[Any]:
    """Lay out a submit: a row per job, and once per group what its jobs share."""
    numbers: dict[tuple[Any, ...], int] = {}
    rows = []
    for job in jobs:
        record, event = job.record, job.event
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
            record.queue,
            event.actor,
            event.reason,
        )
        number = numbers.setdefault(group, len(numbers) + 1)
        rows.append(_submit_row(job, number))
    by_job = [dense(list(column)) for column in zip(*rows, strict=True)]
    return by_job + [list(column) for column in zip(*numbers, strict=True)]


def _submit_row(job: NewJob, group: int) -> tuple[Any, ...]:
    record, event = job.record, job.event
    run_at = event.run_at
    return (
        record.id,
        group,
        created_text(event),
        None if event.body is None else event.body.decode(),
        event.digest,
        None if isinstance(run_at, After) and run_at.micros == 0 else encode(run_at),
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


def commit_arrays(folds: Sequence[Fold], request_id: str) -> list[Any]:
    """Lay out a commit: a row per job, a row per event, and the groups of the summaries."""
    groups: dict[tuple[Any, ...], int] = {}
    jobs = [_job_row(fold, groups) for fold in folds]
    events = [row for i, fold in enumerate(folds, 1) for row in _event_rows(i, fold)]
    actor = folds[0].first.event.actor
    by_job = [list(column) for column in zip(*jobs, strict=True)]
    by_event = [list(column) for column in zip(*events, strict=True)]
    if all(value == actor for value in by_event[8]):
        by_event[8] = []
    floors = by_job.pop()
    return [
        *map(dense, by_job),
        *map(dense, by_event),
        floors,
        actor,
        request_id,
        *([list(column) for column in zip(*groups, strict=True)] or [[]] * 4),
    ]


def _job_row(fold: Fold, groups: dict[tuple[Any, ...], int]) -> tuple[Any, ...]:
    before, after = fold.first.record, fold.last.next
    moved = (before.tenant, before.queue, before.state.code, after.state.code)
    group = None
    if before.state is not after.state:
        group = groups.setdefault(moved, len(groups) + 1)
    rest = rest_of(before, after)
    digest = after.result_digest
    return (
        before.id,
        before.rev,
        after.rev,
        after.state.code,
        fold.flags,
        group,
        lease_of(before, after),
        started_of(before, after),
        digest if digest is not before.result_digest else None,
        None if rest is None else _json(rest).decode(),
        before.updated_at,
    )


def _event_rows(number: int, fold: Fold) -> list[tuple[Any, ...]]:
    rows = []
    for change in fold.changes:
        event = change.event
        at = event.at.micros if isinstance(event.at, After) else 0
        rows.append(
            (
                number,
                event.rev,
                code_of(event),
                at or None,
                encode(event.lease_expires_at),
                encode(event.run_at),
                event.attempt,
                event.beats or None,
                event.actor,
                event.request_id,
                event.reason,
                facts_text(event.facts),
                None if event.body is None else event.body.decode(),
                event.digest,
            )
        )
    return rows
