"""Purged jobs: what both stores have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import JobPurged
from holdfast.lifecycle.job import JobId
from holdfast.ports import PurgeEntry, SubmitRefused


def purge_entry(row: Sequence[Any]) -> PurgeEntry:
    """Read an entry of the ledger of purges."""
    number, at, actor, reason, jobs, events = row
    return PurgeEntry(number=number, at=at, actor=actor, reason=reason, jobs=jobs, events=events)


def refused_as_purged(id: JobId) -> SubmitRefused:
    """Refuse a submit whose key stands for a job that was purged."""
    return SubmitRefused(
        code=JobPurged.code,
        message=f"the job_id or request_id stands for job {id}, which was purged; use a new one",
        holder=id,
    )
