"""Batches as arrays: what the statements of queries.sql take, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.lifecycle.job import DraftEvent, NewJob
from holdfast.lifecycle.policy import needs_key, policy_key
from holdfast.lifecycle.times import NOW, encode
from holdfast.stores.columns import created_text, tuple_text


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
        if last is not None and _asks_alike(last, event):
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


def _asks_alike(one: DraftEvent, other: DraftEvent) -> bool:
    """Whether two first events say the same for certain: what many share was made once."""
    return (
        one.created is other.created
        and one.to_state is other.to_state
        and one.facts is other.facts
        and one.actor == other.actor
        and one.reason == other.reason
    )


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
